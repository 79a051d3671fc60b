// Forward kernels for study, head dim 192.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<192, Purpose::study>();
}  // namespace tandem::forward
