#include "forward/launch.h"

#include "forward/plan.h"
#include "launch/chip.h"

namespace tandem::forward {

core::Status launch(const core::ForwardProblem& problem, void* workspace, void* stream) {
  launch::Chip chip(stream);
  const ForwardVariant& variant = *choose_variant(problem);
  if (core::Status s = chip.open(memory_of(problem, workspace, core::Role::updated)); !s.ok()) return s;
  void* list = list_of(problem, workspace);
  if (problem.varlen.given)
    if (core::Status s = chip.run(make_append_record(problem, variant, workspace)); !s.ok()) return s;
  if (problem.varlen.given && problem.plan == nullptr)
    if (core::Status s = chip.run(make_list_record(problem, variant, chip.sm_count(), list)); !s.ok())
      return s;
  return chip.run(
      make_record(with_rotated_queries(problem, variant, workspace), variant, chip.sm_count(), list));
}

core::Status make_plan(const core::ForwardProblem& problem, void* plan, void* stream) {
  launch::Chip chip(stream);
  if (core::Status s = chip.open(memory_of_planning(problem, plan, plan_bytes(problem))); !s.ok()) return s;
  return chip.run(make_list_record(problem, *choose_variant(problem), chip.sm_count(), plan));
}

}  // namespace tandem::forward
