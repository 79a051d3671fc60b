// Forward kernels, head dim 192.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<192, Purpose::best>();
}  // namespace tandem::forward
