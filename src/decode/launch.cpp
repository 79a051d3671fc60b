#include "decode/launch.h"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <string>
#include <utility>

#include "decode/kernels.h"
#include "decode/plan.h"
#include "hw/cuda/device.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;
using core::Status;

const Kernel* find_kernel(const DecodeVariant& variant) {
  for (std::span<const Kernel> kernels : {kernels_d64(), kernels_d128(), kernels_d256()}) {
    for (const Kernel& kernel : kernels) {
      if (kernel.variant == variant) return &kernel;
    }
  }
  return nullptr;
}

Status check_memory(const DecodeProblem& problem) {
  for (auto [name, address] : {std::pair<const char*, const void*>{"q.data", problem.q.data},
                               {"cache.k.data", problem.k_cache.data},
                               {"cache.v.data", problem.v_cache.data},
                               {"cache.page_table", problem.page_table},
                               {"cache.lengths", problem.lengths},
                               {"cache.batch_index", problem.batch_index},
                               {"k_new.data", problem.k_new.data},
                               {"v_new.data", problem.v_new.data},
                               {"rotary.cos", problem.rotary.cos},
                               {"rotary.sin", problem.rotary.sin},
                               {"o.data", problem.o.data},
                               {"lse.data", problem.lse.data},
                               {"plan", problem.plan}}) {
    if (Status s = hw::check_memory(name, address); !s.ok()) return s;
  }
  return {};
}

Status encode_maps(const DecodeProblem& problem, DecodeArguments* args) {
  if (problem.pages() == 0 ||
      problem.page_size() == 0) {  // nothing will be loaded, but maps have to be valid
    if (Status s = hw::encode("q", problem.q, {1}, &args->k); !s.ok()) return s;
    args->v = args->k;
    return {};
  }
  if (Status s = hw::encode("cache.k", problem.k_cache, {box_rows(problem)}, &args->k); !s.ok()) return s;
  return hw::encode("cache.v", problem.v_cache, {box_rows(problem)}, &args->v);
}

}  // namespace

std::size_t workspace_bytes(const DecodeProblem& problem) {
  const DecodeVariant* variant = choose_variant(problem);
  return variant == nullptr ? 0 : workspace_bytes(problem, *variant);
}

std::size_t plan_bytes(const DecodeProblem& problem) {
  const DecodeVariant* variant = choose_variant(problem);
  return variant == nullptr ? 0 : any_plan_bytes;
}

Status launch(const DecodeProblem& problem, void* workspace, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  if (Status s = check_memory(problem); !s.ok()) return s;
  const DecodeVariant& variant = *choose_variant(problem);
  const Deal dealt = deal(problem, variant, device.sm_count);
  if (dealt.blocks() == 0) return {};
  if (Status s = hw::check_memory("workspace", workspace); !s.ok()) return s;
  DecodeArguments args = make_arguments(problem, variant, dealt, workspace);
  if (Status s = encode_maps(problem, &args); !s.ok()) return s;
  const Kernel& kernel = *find_kernel(variant);
  if (Status s = hw::allow_shared_bytes(kernel.handle, device.ordinal, kernel.shared_bytes); !s.ok())
    return s;
  void* parameters[] = {&args};
  return hw::enqueue("the decode kernel",
                     {kernel.handle, dealt.blocks(), DecodeVariant::threads, kernel.shared_bytes, true},
                     parameters, stream);
}

Status make_plan(const DecodeProblem& problem, void* plan, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  if (Status s = hw::check_memory("cache.lengths", problem.lengths); !s.ok()) return s;
  if (Status s = hw::check_memory("plan", plan); !s.ok()) return s;
  const DecodeVariant& variant = *choose_variant(problem);
  const Deal dealt = deal(problem, variant, device.sm_count);
  if (dealt.blocks() == 0) return {};
  DecodeArguments args = make_arguments(problem, variant, dealt, nullptr);
  args.plan = nullptr;  // what the problem has is of another call
  void* parameters[] = {&args, &plan};
  return hw::enqueue("the plan kernel", {plan_kernel_handle(), 1, plan_threads, 0, false}, parameters,
                     stream);
}

}  // namespace tandem::decode
