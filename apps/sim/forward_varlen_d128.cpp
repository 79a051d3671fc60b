#include "apps/sim/make_forward_kernels.h"

namespace tandem::sim {
template std::span<const Kernel> kernels<128, forward::Purpose::varlen>();
}  // namespace tandem::sim
