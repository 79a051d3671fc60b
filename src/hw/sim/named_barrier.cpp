// Named barriers and the block's barrier (barrier.sync, barrier.arrive), and the proxy fence.
#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

/// What a thread says when it comes to a barrier, where it says anything.
enum class Vote { none, no, yes };

/// Counts the thread in; the one that completes the phase lets everybody go.
bool come(Thread& thread, NamedBarrier& barrier, std::uint32_t threads, Vote vote = Vote::none) {
  if (barrier.threads == 0) {
    barrier.threads = threads;
    barrier.votes = vote != Vote::none;
    barrier.any = false;
    barrier.clock.reset(machine.agents());
    barrier.async_visible.reset(machine.agents());
  }
  if (barrier.threads != threads) {
    fail(Rule::bad_argument, "comes to a named barrier for " + std::to_string(threads) +
                                 " threads, where others came for " + std::to_string(barrier.threads));
  }
  if (barrier.votes != (vote != Vote::none)) {
    fail(Rule::bad_argument, std::string("comes to a named barrier ") +
                                 (barrier.votes ? "without a predicate, where others came with one"
                                                : "with a predicate, where others came without one"));
  }
  barrier.any = barrier.any || vote == Vote::yes;
  barrier.clock.join(thread.clock);
  barrier.async_visible.join(thread.async_visible);
  tick(thread);
  if (++barrier.arrived < threads) return false;
  for (Thread* waiting : barrier.waiting) {
    waiting->clock.join(barrier.clock);
    waiting->async_visible.join(barrier.async_visible);
    waiting->any_voted = barrier.any;
  }
  thread.any_voted = barrier.any;
  thread.clock.join(barrier.clock);
  thread.async_visible.join(barrier.async_visible);
  barrier.threads = barrier.arrived = 0;
  wake(barrier.waiting);
  return true;
}

void check(std::uint32_t id, std::uint32_t threads) {
  if (id >= named_barriers) {
    fail(Rule::bad_argument, "comes to named barrier " + std::to_string(id) + "; 0 to 15 are");
  }
  const auto block = static_cast<std::uint32_t>(machine.config->threads);
  if (threads == 0 || threads % warp_size != 0 || threads > block) {
    fail(Rule::bad_argument, "comes to a named barrier for " + std::to_string(threads) +
                                 " threads; multiples of 32 up to the block's " + std::to_string(block) +
                                 " are");
  }
}

/// Comes and waits for the others.
void sync(Thread& thread, NamedBarrier& barrier, std::uint32_t threads, Wait wait, Vote vote = Vote::none) {
  const std::int64_t began = machine.verbs;
  if (come(thread, barrier, threads, vote)) return perturb();
  thread.wait = wait;
  barrier.waiting.push_back(&thread);
  suspend();
  thread.wait = {};
  trace_wait(thread, wait, began);
}

}  // namespace

void sync_warp() {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "sync_warp", 0, Alignment::any_place);
  sync(thread, machine.block.warps[thread.warp()].barrier, warp_size, {Wait::Kind::warp});
}

void sync_named(std::uint32_t id, std::uint32_t threads) {
  Thread& thread = TANDEM_SIM_ENTER();
  if (threads == 0) threads = static_cast<std::uint32_t>(machine.config->threads);
  check(id, threads);
  converge(thread, "sync_named", id);
  sync(thread, machine.block.named[id], threads, {Wait::Kind::named, static_cast<int>(id)});
}

bool sync_named_any(std::uint32_t id, std::uint32_t threads, bool predicate) {
  Thread& thread = TANDEM_SIM_ENTER();
  check(id, threads);
  converge(thread, "sync_named_any", id);
  sync(thread, machine.block.named[id], threads, {Wait::Kind::named, static_cast<int>(id)},
       predicate ? Vote::yes : Vote::no);
  return thread.any_voted;
}

void arrive_named(std::uint32_t id, std::uint32_t threads) {
  Thread& thread = TANDEM_SIM_ENTER();
  check(id, threads);
  converge(thread, "arrive_named", id);
  // Completing a phase for others does not make the arriver know what they did.
  const Clock clock = thread.clock, async_visible = thread.async_visible;
  if (come(thread, machine.block.named[id], threads)) {
    const Time own = thread.now().time;
    thread.clock = clock;
    thread.async_visible = async_visible;
    thread.clock[static_cast<Agent>(thread.index)] = own;
  }
  perturb();
}

void fence_async_proxy() {
  Thread& thread = TANDEM_SIM_ENTER();
  // Shows to the async proxy all that happened before, the thread's own writes and those it has synchronised
  // with. What it writes from here on is not among that.
  thread.async_visible.join(thread.clock);
  fence_own_barriers(thread);
  tick(thread);
}

void fence_async_proxy_global() {
  Thread& thread = TANDEM_SIM_ENTER();
  thread.async_visible_global = thread.clock;
  tick(thread);
}

}  // namespace tandem::hw::sim
