#include "backward/launch.h"

#include <utility>

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
  return Call(problem, choice, chip.sm_count(), workspace).for_each_step<Status>([&chip](auto&& step) {
    return chip.run(std::move(step.record));
  });
}

}  // namespace tandem::backward
