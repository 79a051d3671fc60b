#include "apps/sim/forward_kernels.h"

namespace tandem::sim {
std::span<const Kernel> kernels_d256() { return kernels<256>(); }
}  // namespace tandem::sim
