#include "apps/sim/decode_kernels.h"

namespace tandem::sim {
std::span<const DecodeKernel> decode_kernels_d128() { return decode_kernels<128>(); }
}  // namespace tandem::sim
