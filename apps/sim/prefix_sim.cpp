#include "apps/sim/prefix_sim.h"

#include <string_view>
#include <utility>
#include <vector>

#include "apps/sim/simulate.h"

namespace tandem::sim {

hw::sim::Report simulate_shared(const core::DecodeProblem& problem, const decode::SharedStep& shared,
                                std::span<std::byte> workspace, std::span<const std::int32_t> page_table,
                                const Machine& machine) {
  api::SharedLaunches all = api::launches_of(problem, shared, machine.multiprocessors, workspace.data());
  std::vector<hw::sim::Buffer> memory = buffers_of(api::memory_of_shared(problem, shared, workspace.data()));
  for (hw::sim::Buffer& buffer : memory)
    if (std::string_view(buffer.name) == "cache.page_table")
      buffer = {page_table.data(), page_table.size_bytes(), buffer.name, false};
  hw::sim::Report report;
  const auto run = [&](auto&& record) {
    if (report.ok()) report = simulate(std::move(record), memory, machine);
  };
  run(std::move(all.append));
  run(std::move(all.list));
  run(std::move(all.step));
  run(std::move(all.combine));
  run(std::move(all.merge));
  return report;
}

}  // namespace tandem::sim
