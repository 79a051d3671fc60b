// What memory the launches of a step touch.
#include <cstdint>

#include "decode/plan.h"

namespace tandem::decode {

using core::DecodeProblem;

core::TensorList memory_of_clearing(void* workspace) {
  core::TensorList list;
  list.add_array("workspace", core::Role::output,
                 core::Region::of(workspace, sizeof(std::uint32_t), 1, most_counters, 0));
  return list;
}

core::TensorList memory_of_step(const DecodeProblem& problem, void* workspace) {
  core::TensorList list = tensors_of(problem);
  list.add_array("workspace", core::Role::updated, core::Region::of(workspace, workspace_bytes(problem)));
  if (problem.plan != nullptr)
    list.add_array("plan", core::Role::input, core::Region::of(problem.plan, 1, 1, any_plan_bytes, 0));
  return list;
}

core::TensorList memory_of_planning(const DecodeProblem& problem, void* plan) {
  core::TensorList list;
  list.add_array("cache.lengths", core::Role::input,
                 core::Region::of(problem.lengths, 4, 1, problem.batch(), 0));
  list.add_array("plan", core::Role::output, core::Region::of(plan, 1, 1, any_plan_bytes, 0));
  return list;
}

}  // namespace tandem::decode
