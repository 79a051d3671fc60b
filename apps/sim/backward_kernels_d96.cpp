#include "apps/sim/make_backward_kernels.h"

namespace tandem::sim {
template std::span<const BackwardKernel> backward_kernels<96>();
template std::span<const BackwardHelpers> backward_helpers<96>();
}  // namespace tandem::sim
