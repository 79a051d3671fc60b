#include "forward/launch.h"

#include "forward/plan.h"
#include "launch/chip.h"

namespace tandem::forward {

core::Status launch(const core::ForwardProblem& problem, void* workspace, void* stream) {
  launch::Chip chip(stream);
  const ForwardVariant& variant = *choose_variant(problem);
  if (core::Status s = chip.open(memory_of(problem, workspace, core::Role::updated)); !s.ok()) return s;
  if (problem.varlen.given) {
    if (core::Status s = chip.run(make_append_record(problem, variant, workspace)); !s.ok()) return s;
    if (core::Status s = chip.run(make_list_record(problem, variant, chip.sm_count(), workspace)); !s.ok())
      return s;
  }
  return chip.run(
      make_record(with_rotated_queries(problem, variant, workspace), variant, chip.sm_count(), workspace));
}

}  // namespace tandem::forward
