// Forward kernels for variable lengths, head dim 256.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<256, Purpose::varlen>();
}  // namespace tandem::forward
