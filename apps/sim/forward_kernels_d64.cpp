#include "apps/sim/forward_kernels.h"

namespace tandem::sim {
std::span<const Kernel> kernels_d64() { return kernels<64>(); }
}  // namespace tandem::sim
