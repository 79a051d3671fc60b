#include "merge/launch.h"

#include <algorithm>
#include <utility>

#include "hw/cuda/device.h"
#include "merge/kernels.h"
#include "merge/plan.h"

namespace tandem::merge {
namespace {

using core::MergeProblem;
using core::Status;

/// Every variant is built.
const Kernel& find_kernel(const MergeVariant& variant) {
  return *std::ranges::find(kernels(), variant, &Kernel::variant);
}

}  // namespace

Status launch(const MergeProblem& problem, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (auto [name, address] : {std::pair<const char*, const void*>{"o_parts.data", problem.o_parts.data},
                               {"lse_parts.data", problem.lse_parts.data},
                               {"o.data", problem.o.data},
                               {"lse.data", problem.lse.data}})
    if (Status s = hw::check_memory(name, address); !s.ok()) return s;
  MergeArguments args = make_arguments(problem);
  const int blocks = blocks_of(args);
  if (blocks == 0) return {};
  const Kernel& kernel = find_kernel({problem.o_parts.dtype, problem.o.dtype});
  void* parameters[] = {&args};
  return hw::enqueue("the merge kernel", {kernel.handle, blocks, threads, 0, false}, parameters, stream);
}

}  // namespace tandem::merge
