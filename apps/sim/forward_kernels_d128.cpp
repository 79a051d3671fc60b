#include "apps/sim/forward_kernels.h"

namespace tandem::sim {
std::span<const Kernel> kernels_d128() { return kernels<128>(); }
}  // namespace tandem::sim
