// Launching, and who runs next.
#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <sys/mman.h>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

Machine machine;

const char* name_of(Policy policy) {
  switch (policy) {
    case Policy::eager:
      return "eager";
    case Policy::late:
      return "late";
    case Policy::random:
      return "random";
  }
  return "unknown";
}

namespace {

constexpr std::size_t guard_bytes = 4096;
constexpr std::size_t slots_per_stack = stack_bytes / 4;
// Stacks are a page more apart than they need, and begin at different lines of their first page, so that the
// threads' frames do not meet in the same sets of the host's caches.
constexpr std::size_t page_bytes = 4096, line_bytes = 64;
constexpr std::size_t stack_stride = stack_bytes + page_bytes;
constexpr std::size_t slots_stride = slots_per_stack + page_bytes / sizeof(std::uint32_t);

/// Stacks of all fibers with their shadow, mapped once; pages come as they are touched.
struct Arena {
  char* stacks;
  std::uint32_t* touched;
  std::uint32_t fence_epochs[max_threads] = {};
  unsigned char* window;

  Arena() {
    stacks = static_cast<char*>(map(max_threads * stack_stride));
    touched = static_cast<std::uint32_t*>(map(max_threads * slots_stride * sizeof(std::uint32_t)));
    window = static_cast<unsigned char*>(map(1 << 18));
    for (int i = 0; i < max_threads; ++i) mprotect(stacks + i * stack_stride, guard_bytes, PROT_NONE);
  }
  static void* map(std::size_t bytes) {
    void* memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  }
};

/// One for each block that has begun and not ended.
Arena& arena(int number) {
  static std::vector<std::unique_ptr<Arena>> arenas;
  while (static_cast<int>(arenas.size()) <= number) arenas.push_back(std::make_unique<Arena>());
  return *arenas[number];
}

/// The arena owns the stacks.
struct NoAllocator {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

/// A lane that leaves while others exchange values would leave them waiting.
void leave(Thread& thread) {
  thread.done = true;
  --machine.block.alive;
  Warp& warp = machine.block.warps[thread.warp()];
  ++warp.exited;
  if (!warp.waiting.empty()) {
    record(Rule::inactive_lane, warp.waiting.front(),
           "shuffles with lane " + std::to_string(thread.lane()) + ", which has left the kernel");
  }
}

boost::context::fiber make_fiber(Thread& thread, const std::function<void()>& body) {
  boost::context::stack_context stack;
  const std::size_t unused = static_cast<std::size_t>(thread.index) * line_bytes % page_bytes;
  stack.size = stack_bytes - guard_bytes - unused;
  stack.sp = thread.stack + stack_bytes - unused;
  return boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                               NoAllocator{}, [&thread, &body](boost::context::fiber&& back) {
                                 thread.back.fiber = std::move(back);
                                 body();
                                 leave(thread);
                                 return std::move(thread.back.fiber);
                               });
}

void start_thread(Thread& thread, int index, const std::function<void()>& body) {
  Block& block = machine.block;
  thread.index = index;
  thread.clock = Clock(machine.agents());
  thread.async_visible = thread.async_visible_global = Clock(machine.agents());
  thread.clock[static_cast<Agent>(index)] = 1;
  Arena& own = arena(block.arena);
  thread.stack = own.stacks + index * stack_stride;
  thread.touched = own.touched + index * slots_stride;
  thread.registers = machine.config->registers_per_thread;
  thread.stack_epoch = own.fence_epochs + index;
  thread.fence_epoch = ++*thread.stack_epoch;  // what the stack's last user touched is of no concern
  thread.own.fiber = make_fiber(thread, body);
  block.ready.push_back(&thread);
}

/// Memory of the shadow stays, for the next block.
void forget_block() {
  SharedShadow shadow = std::move(machine.block.shadow);
  machine.block = Block{};
  machine.block.shadow = std::move(shadow);
}

/// The first arena that no parked block uses.
int free_arena() {
  int number = 0;
  while (std::ranges::any_of(machine.parked, [&](const Block& block) { return block.arena == number; }))
    ++number;
  return number;
}

void start_block(int index, const std::function<void()>& body) {
  const LaunchConfig& config = *machine.config;
  forget_block();
  Block& block = machine.block;
  block.index = index;
  block.arena = free_arena();
  block.window = machine.window = arena(block.arena).window;
  block.threads = std::vector<Thread>(config.threads);
  block.warps = std::vector<Warp>(config.threads / warp_size);
  block.units = std::vector<MatrixUnit>((config.threads + warpgroup_size - 1) / warpgroup_size);
  block.barrier_at.assign(config.shared_bytes / 8 + 1, nullptr);
  block.shadow.reset(config.shared_bytes);
  block.budgets.resize(block.units.size());
  block.alive = config.threads;
  std::fill_n(machine.window, config.shared_bytes, 0xff);
  for (int i = 0; i < config.threads; ++i) start_thread(block.threads[i], i, body);
}

Thread* take_ready() {
  std::deque<Thread*>& ready = machine.block.ready;
  const Policy policy = machine.config->policy;
  if (policy == Policy::random) std::swap(ready.front(), ready[machine.draw(ready.size())]);
  Thread* thread = policy == Policy::late ? ready.back() : ready.front();
  if (policy == Policy::late) {
    ready.pop_back();
  } else {
    ready.pop_front();
  }
  return thread;
}

void resume(Thread& thread) {
  if (++machine.report.statistics.switches > machine.config->max_switches) {
    return record(Rule::deadlock, &thread, "is one of those that go on without an end");
  }
  machine.running = &thread;
  machine.in_hook = false;
  // The fiber that comes back belongs to whoever suspended; suspend() has already stored it.
  boost::context::fiber from = std::move(thread.own.fiber).resume();
  machine.running = nullptr;
  if (from) thread.own.fiber = std::move(from);
}

/// `stragglers`: of copies those too that straggle.
bool land_something(bool stragglers) {
  const bool random = machine.config->policy == Policy::random;  // else stores wait to be waited for
  if (random && !machine.block.stores.empty() && machine.draw(2) == 0) return land_store();
  const bool copy_first = machine.config->policy == Policy::eager || machine.draw(2) == 0;
  const auto copy = [=] { return land_copy(machine.config->policy == Policy::eager, stragglers); };
  return copy_first ? copy() || execute_product() : execute_product() || copy();
}

/// Until the block has ended, or can't go on by itself, or lets others run.
void run_block() {
  Block& block = machine.block;
  machine.wants_another = false;
  while (!machine.report.fault && !machine.wants_another) {
    if (machine.chance(16)) land_something(false);
    if (!block.ready.empty()) {
      resume(*take_ready());
    } else if (!land_something(false) && !land_something(true)) {
      return;
    }
  }
}

std::string describe_wait(const Thread& thread) {
  switch (thread.wait.kind) {
    case Wait::Kind::barrier: {
      const BarrierRecord& barrier = machine.block.barriers[thread.wait.object];
      const std::int64_t bytes = missing_bytes(barrier);
      return "waits for parity " + std::to_string(thread.wait.parity) + " of " + describe(barrier) +
             (bytes != 0 ? ", where all have arrived and " + std::to_string(bytes) + " bytes are missing"
                         : "");
    }
    case Wait::Kind::named: {
      const NamedBarrier& named = machine.block.named[thread.wait.object];
      return "waits at named barrier " + std::to_string(thread.wait.object) + ", where " +
             std::to_string(named.arrived) + " of " + std::to_string(named.threads) + " threads are";
    }
    case Wait::Kind::registers:
      return "waits for " + std::to_string(thread.wait.object) + " registers; the pool has " +
             std::to_string(machine.block.pool);
    case Wait::Kind::products:
      return "waits for WGMMA " + std::to_string(thread.wait.object) + " of its warpgroup, of which " +
             std::to_string(machine.block.units[thread.warpgroup()].issued) +
             " were started by all its threads";
    case Wait::Kind::shuffle:
      return "waits for the other lanes in a shuffle";
    case Wait::Kind::warp:
      return "waits for the other lanes at sync_warp";
    case Wait::Kind::counter:
      return "waits until a counter is at " + std::to_string(thread.wait.object);
    case Wait::Kind::none:
      break;
  }
  return "can run";
}

/// All arrivals have come, but not the bytes: no copy is on its way, so the count is wrong.
bool waits_for_bytes(const Thread& thread) {
  return thread.wait.kind == Wait::Kind::barrier &&
         missing_bytes(machine.block.barriers[thread.wait.object]) != 0;
}

/// Blocked threads in runs of neighbours that wait alike.
void report_deadlock() {
  std::vector<Related> others;
  Rule rule = Rule::deadlock;
  std::vector<Thread>& threads = machine.block.threads;
  for (std::size_t i = 0; i < threads.size();) {
    std::size_t end = i + 1;
    const std::string wait = describe_wait(threads[i]);
    while (end < threads.size() && threads[end].done == threads[i].done &&
           threads[end].code == threads[i].code && describe_wait(threads[end]) == wait) {
      ++end;
    }
    if (!threads[i].done) {
      if (threads[i].wait.kind == Wait::Kind::registers) rule = Rule::register_pool;
      if (waits_for_bytes(threads[i])) rule = Rule::transaction_mismatch;
      const std::string range = "threads " + std::to_string(i) + "-" + std::to_string(end - 1);
      others.push_back({range + " (" + threads[i].role + ") " + wait, threads[i].code});
    }
    i = end;
  }
  record(rule, nullptr, "no thread can go on", others);
}

/// What a block must not leave behind.
void finish_block() {
  Block& block = machine.block;
  if (block.alive > 0) return report_deadlock();
  land_all_stores();
  for (const Thread& thread : block.threads) {
    if (!thread.owned_registers.empty()) {
      return record(Rule::unfinished, &thread, "left the kernel with a WGMMA that it never waited for");
    }
    if (thread.stores_read < thread.stores.size()) {
      const StoreRecord& store = machine.stores[thread.stores[thread.stores_read]];
      return record(Rule::unfinished, &thread,
                    "left the kernel with a store from shared memory that it never waited for",
                    {{"the store", store.code}});
    }
  }
  for (const Warp& warp : block.warps) {
    if (!warp.collectives.empty()) {
      const Collective& missed = warp.collectives.front();
      return record(Rule::divergence, nullptr,
                    "only " + std::to_string(missed.lanes) + " lanes of warp " +
                        std::to_string(&warp - block.warps.data()) + " came to a " + missed.what,
                    {{"the others", missed.code}});
    }
  }
  check_budgets();
  for (const BarrierRecord& barrier : block.barriers) check_finished(barrier);
}

/// In which order they begin: nobody may rely on it.
std::vector<int> order_of_blocks(const LaunchConfig& config) {
  std::vector<int> order(config.blocks);
  std::iota(order.begin(), order.end(), 0);
  if (config.policy == Policy::late) std::reverse(order.begin(), order.end());
  if (config.policy == Policy::random) std::shuffle(order.begin(), order.end(), machine.random);
  return order;
}

void check_config(const LaunchConfig& config) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
  };
  require(config.blocks >= 0, "blocks: at least 0");
  require(config.threads > 0 && config.threads <= max_threads && config.threads % warp_size == 0,
          "threads: a multiple of 32, at most 1024");
  require(config.shared_bytes >= 0 && config.shared_bytes <= max_shared_bytes,
          "shared_bytes: at most 227 KiB");
  require(config.registers_per_thread * config.threads <= 65536,
          "registers_per_thread: 65536 over all threads");
}

/// Whether the running block can do anything.
bool can_go_on(const Block& block) {
  return !block.ready.empty() || !block.copies.empty() ||
         std::ranges::any_of(block.units,
                             [](const MatrixUnit& unit) { return unit.issued > unit.completed; });
}

/// Parks the running block behind the others, and takes the first that can go on; any if none can.
bool take_turns() {
  if (machine.block.alive > 0) machine.parked.push_back(std::move(machine.block));
  auto next = std::ranges::find_if(machine.parked, can_go_on);
  const bool found = next != machine.parked.end();
  if (!found) next = machine.parked.begin();
  machine.block = std::move(*next);
  machine.parked.erase(next);
  machine.window = machine.block.window;
  return found;
}

/// All blocks of the grid. Most run one after another; where one waits for others or may let them run, the
/// next one begins too, until as many have begun as would be resident.
void run_blocks(const std::function<void()>& body) {
  constexpr std::size_t most_resident = 6;
  const std::vector<int> order = order_of_blocks(*machine.config);
  auto next = order.begin();
  forget_block();
  while (machine.report.ok()) {
    const bool runs = machine.block.alive > 0, full = machine.parked.size() >= most_resident;
    const bool others = std::ranges::any_of(machine.parked, can_go_on);
    const bool stuck = runs && !can_go_on(machine.block) && !others;
    if (next != order.end() && (stuck || (!full && (!runs || machine.wants_another)))) {
      if (runs) machine.parked.push_back(std::move(machine.block));
      start_block(*next++, body);
    } else if (machine.block.alive > 0 || !machine.parked.empty()) {
      if (!take_turns()) return report_deadlock();
    } else {
      return;
    }
    run_block();
    if (machine.report.ok() && machine.block.alive == 0) finish_block();
  }
}

}  // namespace

Agent Machine::agents() const {
  return static_cast<Agent>(config->threads + config->threads / warpgroup_size + 1 + max_barriers);
}

void suspend() {
  Thread& thread = *machine.running;
  thread.back.fiber = std::move(thread.back.fiber).resume();
}

void abandon() {
  for (;;) suspend();
}

void yield() {
  std::deque<Thread*>& ready = machine.block.ready;
  if (machine.config->policy == Policy::late) {
    ready.push_front(machine.running);  // the last to be taken
  } else {
    ready.push_back(machine.running);
  }
  suspend();
}

void trace_wait(const Thread& thread, Wait wait, std::int64_t began) {
  // One thread stands for its warpgroup; producers may be any lane, and are alone.
  const bool shown = thread.index % warpgroup_size == 0 || thread.started_copies;
  if (machine.config->trace == nullptr || !shown || machine.verbs == began) return;
  static constexpr const char* names[] = {"",      "barrier", "named barrier", "registers",
                                          "WGMMA", "shuffle", "warp",          "counter"};
  std::string what = std::string("waits: ") + names[static_cast<int>(wait.kind)];
  if (wait.kind == Wait::Kind::barrier || wait.kind == Wait::Kind::named)
    what += " " + std::to_string(wait.object);
  machine.config->trace->add("block " + std::to_string(machine.block.index) + ", warpgroup " +
                                 std::to_string(thread.warpgroup()) + " (" + thread.role + ")",
                             what, began, machine.verbs);
}

void perturb() {
  if (machine.chance(8)) yield();
}

void wake_counters() {
  wake(machine.block.waiting_for_counters);
  for (Block& block : machine.parked) {
    block.ready.insert(block.ready.end(), block.waiting_for_counters.begin(),
                       block.waiting_for_counters.end());
    block.waiting_for_counters.clear();
  }
}

void wake(std::vector<Thread*>& waiting) {
  for (Thread* thread : waiting) machine.block.ready.push_back(thread);
  waiting.clear();
}

Report launch(const LaunchConfig& config, const std::function<void()>& body) {
  check_config(config);
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  LaunchConfig own = config;
  if (own.registers_per_thread == 0) own.registers_per_thread = std::min(255, 65536 / own.threads) / 8 * 8;
  machine.config = &own;
  machine.report = {};
  machine.random.seed(own.seed);
  machine.verbs = 0;
  machine.parked.clear();
  machine.global.reset(own.buffers);
  machine.stores.clear();
  machine.waited_for_prior_grid = false;
  run_blocks(body);
  if (machine.report.ok() && own.beside && !machine.waited_for_prior_grid)
    record(Rule::unfinished, &machine.block.threads.front(),
           "ends, and nobody of the grid has waited for the one that it ran beside");
  for (Thread& thread : machine.block.threads) disown_registers(thread);
  for (Block& block : machine.parked)  // of a launch that a fault has ended
    for (Thread& thread : block.threads) disown_registers(thread);
  forget_block();
  machine.parked.clear();
  machine.config = nullptr;
  return std::move(machine.report);
}

std::string Report::text() const { return fault ? fault->text : std::string(); }

}  // namespace tandem::hw::sim
