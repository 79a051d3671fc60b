// The kernel that makes a plan.
#include "decode/kernel.h"
#include "decode/kernels.h"

namespace tandem::decode {
namespace {

__global__ void __launch_bounds__(plan_threads)
    plan_trampoline(const __grid_constant__ DecodeArguments args, std::int32_t* plan) {
  plan_kernel(args, plan);
}

}  // namespace

const void* plan_kernel_handle() { return reinterpret_cast<const void*>(&plan_trampoline); }

}  // namespace tandem::decode
