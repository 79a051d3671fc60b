#include "backward/launch.h"

#include <utility>

#include "backward/varlen_plan.h"
#include "launch/chip.h"

namespace tandem::backward {

using core::Status;

Status launch(const core::BackwardProblem& problem, void* workspace, void* stream) {
  return launch_with(problem, choose(problem), workspace, stream);
}

Status launch_with(const core::BackwardProblem& problem, const Choice& choice, void* workspace,
                   void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of(problem, choice, workspace)); !s.ok()) return s;
  const auto run = [&chip](auto&& step) { return chip.run(std::move(step.record)); };
  if (problem.varlen.given)
    return VarlenCall(problem, choice, chip.sm_count(), workspace).for_each_step<Status>(run);
  return Call(problem, choice, chip.sm_count(), workspace).for_each_step<Status>(run);
}

}  // namespace tandem::backward
