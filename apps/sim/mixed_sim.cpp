#include "apps/sim/mixed_sim.h"

#include <limits>
#include <utility>
#include <vector>

#include "apps/sim/simulate.h"
#include "forward/plan.h"

namespace tandem::sim {

hw::sim::Report simulate_mixed(const core::ForwardProblem& problem, const api::FewQueries& few,
                               std::span<std::byte> workspace, const Machine& machine) {
  api::MixedLaunches all = api::launches_of(problem, few, machine.multiprocessors, workspace.data());
  const std::vector<hw::sim::Buffer> memory =
      buffers_of(api::memory_of_mixed(problem, few, workspace.data()));
  decode::DecodeArguments& step = all.step.arguments;
  if (machine.long_steps && step.long_step < std::numeric_limits<int>::max())
    step.long_step = all.combine.arguments.step.long_step = 0;
  hw::sim::Report report;
  const auto run = [&](auto&& record, Overlap overlap = Overlap::by_family) {
    if (report.ok()) report = simulate(std::move(record), memory, machine, overlap);
  };
  run(std::move(all.clear));
  run(std::move(all.append));
  run(std::move(all.list));
  run(std::move(all.step), few.variant->lists_queries() ? Overlap::next_beside : Overlap::by_family);
  run(std::move(all.forward), Overlap::beside);
  run(std::move(all.combine));
  return report;
}

hw::sim::Report simulate_mixed_plan(const core::ForwardProblem& problem, const api::FewQueries& few,
                                    std::span<std::byte> plan, const Machine& machine) {
  api::PlanLaunches all = api::planning_launches_of(problem, few, machine.multiprocessors, plan.data());
  const std::vector<hw::sim::Buffer> memory =
      buffers_of(forward::memory_of_planning(problem, plan.data(), plan.size()));
  hw::sim::Report report = simulate(std::move(all.clear), memory, machine);
  if (report.ok()) report = simulate(std::move(all.list), memory, machine);
  return report;
}

}  // namespace tandem::sim
