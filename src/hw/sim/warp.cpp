// What the lanes of a warp do together: election, shuffles, converged operations.
#include <algorithm>
#include <cstring>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

void converge(Thread& thread, const char* what, std::uint64_t argument, Alignment alignment) {
  Warp& warp = machine.block.warps[thread.warp()];
  const std::int64_t place = thread.collectives++ - warp.first_collective;
  if (place == static_cast<std::int64_t>(warp.collectives.size())) {
    warp.collectives.push_back({what, argument, thread.code});
  }
  Collective& expected = warp.collectives[place];
  const bool same = expected.what == what || std::strcmp(expected.what, what) == 0;
  if (!same || expected.argument != argument) {
    fail(Rule::divergence,
         std::string("executes ") + what + " where another lane of its warp executes " + expected.what,
         {{"the other lane", expected.code}});
  }
  if (alignment == Alignment::same_place && !same_place(expected.code, thread.code)) {
    fail(Rule::divergence,
         std::string("executes ") + what + " at another place than another lane of its warp",
         {{"the other lane", expected.code}});
  }
  if (++expected.lanes == warp_size) {
    warp.collectives.pop_front();
    ++warp.first_collective;
  }
}

std::uint32_t thread_index() { return static_cast<std::uint32_t>(machine.running->index); }
std::uint32_t block_index() { return static_cast<std::uint32_t>(machine.block.index); }
std::uint32_t grid_size() { return static_cast<std::uint32_t>(machine.config->blocks); }

std::uint32_t converged_thread_index(const char* what) {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, what, 0, Alignment::any_place);
  return static_cast<std::uint32_t>(thread.index);
}

void set_role(const char* name) { machine.running->role = name; }

bool elect_one() {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "elect_one", 0, Alignment::any_place);
  // Any lane may be elected, but always the same one.
  const bool any = machine.config->policy == Policy::random;
  const auto elected = any ? static_cast<int>((machine.config->seed * 7 + thread.warp()) % warp_size) : 0;
  return thread.lane() == elected;
}

const LaneWords* exchange(Thread& thread, const LaneWords& words, const char* what, std::uint64_t argument,
                          Alignment alignment) {
  Warp& warp = machine.block.warps[thread.warp()];
  if (warp.exited > 0) {
    fail(Rule::inactive_lane,
         std::string("executes ") + what + " with lanes of its warp that have left the kernel");
  }
  converge(thread, what, argument, alignment);
  const std::int64_t buffer = thread.exchanges++ & 1;
  warp.exchange[buffer][thread.lane()] = words;
  if (++warp.exchanged[buffer] == warp_size) {
    warp.exchanged[buffer] = 0;
    wake(warp.waiting);
  } else {
    thread.wait = {Wait::Kind::shuffle};
    warp.waiting.push_back(&thread);
    suspend();
    thread.wait = {};
  }
  return warp.exchange[buffer];
}

std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane) {
  Thread& thread = TANDEM_SIM_ENTER();
  if (lane >= warp_size)
    fail(Rule::bad_argument, "shuffles from lane " + std::to_string(lane) + ", not below 32");
  return exchange(thread, {value}, "shuffle", 0, Alignment::any_place)[lane][0];
}

std::uint32_t shuffle_xor(std::uint32_t value, std::uint32_t mask) {
  Thread& thread = TANDEM_SIM_ENTER();
  if (mask >= warp_size)
    fail(Rule::bad_argument, "shuffle_xor with mask " + std::to_string(mask) + ", not below 32");
  return exchange(thread, {value}, "shuffle_xor", mask,
                  Alignment::any_place)[thread.lane() ^ static_cast<int>(mask)][0];
}

bool any_lane(bool predicate) {
  const LaneWords* lanes =
      exchange(TANDEM_SIM_ENTER(), {predicate ? 1u : 0u}, "any_lane", 0, Alignment::any_place);
  return std::any_of(lanes, lanes + warp_size, [](const LaneWords& words) { return words[0] != 0; });
}

}  // namespace tandem::hw::sim
