// Forward kernels for variable lengths, head dim 64.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<64, Purpose::varlen>();
}  // namespace tandem::forward
