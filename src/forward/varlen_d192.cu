// Forward kernels for variable lengths, head dim 192.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<192, Purpose::varlen>();
}  // namespace tandem::forward
