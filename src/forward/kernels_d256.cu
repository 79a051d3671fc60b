// Forward kernels, head dim 256.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<256, Purpose::best>();
}  // namespace tandem::forward
