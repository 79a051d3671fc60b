// Forward kernels for study, head dim 128.
#include "forward/trampoline.cuh"

namespace tandem::forward {
template std::span<const Kernel> kernels<128, Purpose::study>();
}  // namespace tandem::forward
