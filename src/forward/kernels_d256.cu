// Forward kernels for head dim 256.
#include "forward/trampoline.cuh"

namespace tandem::forward {
std::span<const Kernel> kernels_d256() { return kernels<256>(); }
}  // namespace tandem::forward
