// Transaction barriers (mbarrier). The counts live in the barrier's 8 bytes of shared memory.
#include <algorithm>
#include <cstring>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

constexpr std::uint32_t max_arrivals = (1u << 20) - 1;
constexpr std::int64_t max_transactions = (1 << 20) - 1;

/// The state word: arrivals that start a phase, arrivals still to come, bytes still to come, and the phase's
/// parity.
struct Counts {
  std::uint32_t expected, pending;
  std::int32_t bytes;
  std::uint32_t parity;

  static Counts load(const BarrierRecord& barrier) {
    std::uint64_t word;
    std::memcpy(&word, machine.window + barrier.offset, sizeof word);
    const auto field = [&](int shift, int bits) {
      return static_cast<std::uint32_t>(word >> shift & ((std::uint64_t{1} << bits) - 1));
    };
    const auto bytes = static_cast<std::int32_t>(field(40, 22) << 10) >> 10;
    return {field(0, 20), field(20, 20), bytes, field(62, 1)};
  }
  void store(const BarrierRecord& barrier) const {
    const std::uint64_t word = expected | std::uint64_t{pending} << 20 |
                               (static_cast<std::uint64_t>(bytes) & 0x3fffff) << 40 |
                               std::uint64_t{parity} << 62;
    std::memcpy(machine.window + barrier.offset, &word, sizeof word);
  }
};

void complete_if_done(BarrierRecord& barrier, Counts counts) {
  if (counts.pending == 0 && counts.bytes == 0) {
    ++barrier.phases;
    counts.parity ^= 1;
    counts.pending = counts.expected;
    barrier.arrived[barrier.agent] = barrier.phases;
    barrier.completed = barrier.arrived;
    barrier.completed_async = barrier.arrived_async;
    wake(barrier.waiting);
  }
  counts.store(barrier);
}

void arrive(Thread& thread, BarrierRecord& barrier, std::uint32_t bytes) {
  Counts counts = Counts::load(barrier);
  if (counts.pending == 0) {
    fail(Rule::bad_barrier, "arrives at " + describe(barrier) + ", to which all " +
                                std::to_string(counts.expected) +
                                " arrivals have come and only bytes are missing");
  }
  barrier.arrived.join(thread.clock);
  barrier.arrived_async.join(thread.async_visible);
  tick(thread);
  --counts.pending;
  counts.bytes += static_cast<std::int32_t>(bytes);
  if (counts.bytes > max_transactions) {
    fail(Rule::transaction_mismatch,
         "expects more than " + std::to_string(max_transactions) + " bytes at " + describe(barrier));
  }
  complete_if_done(barrier, counts);
  perturb();
}

}  // namespace

BarrierRecord& find_barrier(const Barrier& barrier, const Thread& thread) {
  const std::uint32_t offset = offset_of(&barrier, sizeof barrier, "a barrier");
  BarrierRecord* record = offset % 8 == 0 ? machine.block.barrier_at[offset / 8] : nullptr;
  if (record == nullptr) {
    fail(Rule::bad_barrier,
         "uses a barrier at shared offset " + std::to_string(offset) + " that nobody initialised");
  }
  if (!thread.clock.knows(record->initialised)) {
    fail(Rule::shared_race,
         "uses " + describe(*record) + " without having synchronised with its initialisation");
  }
  return *record;
}

void barrier_init(Barrier& barrier, std::uint32_t arrivals) {
  Thread& thread = TANDEM_SIM_ENTER();
  Block& block = machine.block;
  const std::uint32_t offset = offset_of(&barrier, sizeof barrier, "a barrier");
  if (offset % 8 != 0) fail(Rule::bad_barrier, "initialises a barrier that is not aligned to 8 bytes");
  if (arrivals == 0 || arrivals > max_arrivals) {
    fail(Rule::bad_barrier,
         "initialises a barrier for " + std::to_string(arrivals) + " arrivals; 1 to 2^20 - 1 are");
  }
  if (block.barrier_at[offset / 8] != nullptr) {
    fail(Rule::bad_barrier, "initialises " + describe(*block.barrier_at[offset / 8]) + " once more");
  }
  if (block.barriers.size() == max_barriers) fail(Rule::bad_barrier, "initialises more than 128 barriers");
  block.shadow.access(offset, sizeof barrier, true, thread.code);
  BarrierRecord& record = block.barriers.emplace_back();
  record.offset = offset;
  record.ordinal = static_cast<int>(block.barriers.size()) - 1;
  record.agent = static_cast<Agent>(machine.agents() - max_barriers + record.ordinal);
  record.code = thread.code;
  record.initialised = thread.now();
  record.arrived = record.completed = Clock(machine.agents());
  record.arrived_async = record.completed_async = Clock(machine.agents());
  block.barrier_at[offset / 8] = &record;
  Counts{arrivals, arrivals, 0, 0}.store(record);
}

void fence_own_barriers(const Thread& thread) {
  for (BarrierRecord& barrier : machine.block.barriers) {
    if (barrier.initialised.agent == thread.index && !barrier.fenced.exists()) barrier.fenced = thread.now();
  }
}

void fence_barrier_init() { fence_own_barriers(TANDEM_SIM_ENTER()); }

void barrier_arrive(Barrier& barrier) {
  Thread& thread = TANDEM_SIM_ENTER();
  arrive(thread, find_barrier(barrier, thread), 0);
}

void barrier_arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  Thread& thread = TANDEM_SIM_ENTER();
  arrive(thread, find_barrier(barrier, thread), bytes);
}

void barrier_wait(Barrier& object, std::uint32_t parity) {
  Thread& thread = TANDEM_SIM_ENTER();
  BarrierRecord& barrier = find_barrier(object, thread);
  if (parity > 1) fail(Rule::bad_argument, "waits for parity " + std::to_string(parity) + "; 0 or 1 are");
  const Time first_seen = barrier.phases;
  wait_until(thread, barrier.waiting, {Wait::Kind::barrier, barrier.ordinal, parity}, [&] {
    const bool passed = (barrier.phases & 1) != parity;
    // Whoever waits for a phase has to see its end before the next phase ends too: parity can't tell them
    // apart.
    if (barrier.phases > first_seen + 1 && (first_seen & 1) == parity) {
      fail(Rule::wrong_phase, "waits for phase " + std::to_string(first_seen) + " of " + describe(barrier) +
                                  ", which has left that phase behind and the next one too");
    }
    return passed;
  });
  thread.clock.join(barrier.completed);
  thread.async_visible.join(barrier.completed_async);
}

void complete_bytes(BarrierRecord& barrier, std::uint32_t bytes, const CopyInFlight& copy) {
  if (barrier.phases != copy.phase) {
    return record(Rule::transaction_mismatch, &machine.block.threads[copy.thread],
                  "started a copy in phase " + std::to_string(copy.phase) + " of " + describe(barrier) +
                      ", which completed without the copy's bytes",
                  {{"the copy", copy.code}});
  }
  Counts counts = Counts::load(barrier);
  counts.bytes -= static_cast<std::int32_t>(bytes);
  complete_if_done(barrier, counts);
}

std::int64_t missing_bytes(const BarrierRecord& barrier) {
  const Counts counts = Counts::load(barrier);
  return counts.pending == 0 ? counts.bytes : 0;
}

void check_finished(const BarrierRecord& barrier) {
  const std::vector<Thread>& threads = machine.block.threads;
  const auto has_seen = [&](const Thread& thread) {
    return thread.clock[barrier.agent] >= barrier.copies_until;
  };
  if (const std::int64_t bytes = Counts::load(barrier).bytes; bytes != 0) {
    record(Rule::transaction_mismatch, nullptr,
           "the block ended with a count of " + std::to_string(bytes) + " bytes at " + describe(barrier),
           {{"the last copy", barrier.last_copy}});
  } else if (std::none_of(threads.begin(), threads.end(), has_seen)) {
    record(Rule::unfinished, nullptr,
           "the block ended without a wait for the last copy at " + describe(barrier),
           {{"the copy", barrier.last_copy}});
  }
}

}  // namespace tandem::hw::sim
