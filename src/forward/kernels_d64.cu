// Forward kernels for head dim 64.
#include "forward/trampoline.cuh"

namespace tandem::forward {
std::span<const Kernel> kernels_d64() { return kernels<64>(); }
}  // namespace tandem::forward
