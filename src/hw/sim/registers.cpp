// Register budgets (setmaxnreg). The pool is the block's own: what its launch was given and its warpgroups
// have released. Registers that the launch left over on the multiprocessor are not in it.
#include <algorithm>
#include <span>
#include <string_view>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

std::span<Thread> warpgroup_of(const Thread& thread) {
  const int first = thread.warpgroup() * warpgroup_size;
  const int count = std::min(warpgroup_size, machine.config->threads - first);
  return {&machine.block.threads[static_cast<std::size_t>(first)], static_cast<std::size_t>(count)};
}

/// All threads of the warpgroup change their budgets alike, and know that all have done so before the next
/// time.
void change_together(Thread& thread, const char* what, int count) {
  converge(thread, what, static_cast<std::uint64_t>(count));
  std::vector<BudgetChange>& changes = machine.block.budgets[thread.warpgroup()];
  if (thread.budget_changes > 0) {
    for (const Thread& other : warpgroup_of(thread)) {
      const Time time = changes[thread.budget_changes - 1].times[other.index % warpgroup_size];
      if (time != 0 && thread.clock.knows({other.now().agent, time})) continue;
      fail(Rule::register_pool, std::string("executes ") + what + " without knowing that " + describe(other) +
                                    " has changed its registers before");
    }
  }
  if (thread.budget_changes == changes.size()) changes.push_back({what, count, thread.code, 0, {}});
  BudgetChange& change = changes[thread.budget_changes++];
  if (std::string_view(change.what) != what || change.count != count) {
    fail(Rule::divergence,
         std::string("executes ") + what + " to " + std::to_string(count) +
             " registers where another warp of its warpgroup executes " + change.what + " to " +
             std::to_string(change.count),
         {{"the other warp", change.code}});
  }
  if (!same_place(change.code, thread.code)) {
    fail(Rule::divergence,
         std::string("executes ") + what + " at another place than another warp of its warpgroup",
         {{"the other warp", change.code}});
  }
  ++change.threads;
  change.times[thread.index % warpgroup_size] = thread.now().time;
  tick(thread);
}

}  // namespace

void release_registers(int count) {
  Thread& thread = TANDEM_SIM_ENTER();
  change_together(thread, "release_registers", count);
  if (count > thread.registers) {
    fail(Rule::register_pool, "releases registers down to " + std::to_string(count) + ", but has only " +
                                  std::to_string(thread.registers));
  }
  machine.block.pool += thread.registers - count;
  thread.registers = count;
  wake(machine.block.waiting_for_registers);
}

void acquire_registers(int count) {
  Thread& thread = TANDEM_SIM_ENTER();
  change_together(thread, "acquire_registers", count);
  if (count < thread.registers) {
    fail(Rule::register_pool, "acquires registers up to " + std::to_string(count) + ", but has " +
                                  std::to_string(thread.registers));
  }
  const int more = count - thread.registers;
  wait_until(thread, machine.block.waiting_for_registers, {Wait::Kind::registers, more},
             [&] { return machine.block.pool >= more; });
  machine.block.pool -= more;
  thread.registers = count;
}

void check_budgets() {
  const Block& block = machine.block;
  for (std::size_t i = 0; i < block.budgets.size(); ++i) {
    const Thread& first = block.threads[i * warpgroup_size];
    const std::size_t threads = warpgroup_of(first).size();
    for (const BudgetChange& change : block.budgets[i]) {
      if (change.threads == threads) continue;
      return record(Rule::divergence, nullptr,
                    "only " + std::to_string(change.threads) + " threads of warpgroup " + std::to_string(i) +
                        " came to a " + change.what,
                    {{"the others", change.code}});
    }
  }
}

}  // namespace tandem::hw::sim
