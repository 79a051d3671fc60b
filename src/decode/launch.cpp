#include "decode/launch.h"

#include <utility>

#include "decode/plan.h"
#include "launch/chip.h"

namespace tandem::decode {

using core::DecodeProblem;
using core::Status;

namespace {

Status run(launch::Record<Family>&& step, const launch::Chip& chip) {
  auto combine = make_combine_record(step);
  return chip.run_all(std::move(step), std::move(combine));
}

}  // namespace

Status launch(const DecodeProblem& problem, void* workspace, void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of_step(problem, workspace)); !s.ok()) return s;
  return run(make_record(problem, *choose_variant(problem), chip.sm_count(), workspace), chip);
}

Status launch_on_any_workspace(const DecodeProblem& problem, void* workspace, void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of_step(problem, workspace)); !s.ok()) return s;
  auto step = make_record(problem, *choose_variant(problem), chip.sm_count(), workspace);
  if (counts_parts(step))
    if (Status s = chip.run(make_clear_record(workspace)); !s.ok()) return s;
  return run(std::move(step), chip);
}

Status make_plan(const DecodeProblem& problem, void* plan, void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of_planning(problem, plan)); !s.ok()) return s;
  return chip.run(make_plan_record(problem, *choose_variant(problem), chip.sm_count(), plan));
}

}  // namespace tandem::decode
