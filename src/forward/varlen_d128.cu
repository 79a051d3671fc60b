// Forward kernels for variable lengths, head dim 128.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<128, Purpose::varlen>();
}  // namespace tandem::forward
