#include "apps/sim/decode_kernels.h"

namespace tandem::sim {
std::span<const DecodeKernel> decode_kernels_d64() { return decode_kernels<64>(); }
void make_decode_plan(const decode::DecodeArguments& args, std::int32_t* plan) {
  decode::plan_kernel(args, plan);
}
}  // namespace tandem::sim
