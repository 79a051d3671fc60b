#include "apps/sim/decode_kernels.h"

namespace tandem::sim {
std::span<const DecodeKernel> decode_kernels_d256() { return decode_kernels<256>(); }
}  // namespace tandem::sim
