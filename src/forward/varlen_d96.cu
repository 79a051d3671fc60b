// Forward kernels for variable lengths, head dim 96.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<96, Purpose::varlen>();
}  // namespace tandem::forward
