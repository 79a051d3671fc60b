#include "merge/launch.h"

#include "launch/chip.h"
#include "merge/plan.h"

namespace tandem::merge {

core::Status launch(const core::MergeProblem& problem, void* stream) {
  launch::Chip chip(stream);
  if (core::Status s = chip.open(tensors_of(problem)); !s.ok()) return s;
  return chip.run(make_record(problem));
}

}  // namespace tandem::merge
