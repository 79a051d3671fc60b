// Forward kernels for head dim 128.
#include "forward/trampoline.cuh"

namespace tandem::forward {
std::span<const Kernel> kernels_d128() { return kernels<128>(); }
}  // namespace tandem::forward
