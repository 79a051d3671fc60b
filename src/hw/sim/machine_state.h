// The inside of the software Hopper: one block at a time, its threads, barriers and work in flight.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/stack_context.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "hw/sim/clock.h"
#include "hw/sim/device.h"
#include "hw/sim/machine.h"
#include "hw/sim/shadow.h"
#include "hw/sim/trace.h"

namespace tandem::hw::sim {

/// Where the shared window begins: never 0, so that a forgotten address shows.
inline constexpr std::uint32_t window_base = 1024;
inline constexpr int max_threads = 1024;
inline constexpr int max_barriers = 128;
inline constexpr int named_barriers = 16;
inline constexpr std::size_t stack_bytes = 256 * 1024;

/// A fiber that may be abandoned: destroying a suspended boost fiber would unwind its stack, through frames
/// (the memory hooks) that no exception may cross.
union AbandonableFiber {
  boost::context::fiber fiber;
  AbandonableFiber() : fiber() {}
  ~AbandonableFiber() {}
};

/// What a thread waits for, for the deadlock report.
struct Wait {
  enum class Kind { none, barrier, named, registers, products, shuffle, warp, counter } kind = Kind::none;
  int object = 0;  ///< barrier's ordinal, named barrier's id, registers asked for, products, counter's value
  std::uint32_t parity = 0;
};

/// Registers (stack memory) that an unfinished WGMMA owns.
struct OwnedRegisters {
  const void* begin;
  std::size_t bytes;
  bool accumulators;  ///< or an A fragment
  Time product;       ///< the last one that uses them
};

/// What stands in place of the fence epoch of an access where an unfinished WGMMA owns the register.
inline constexpr std::uint32_t owned_fragment = 0xfffffffe, owned_accumulator = 0xffffffff;
inline constexpr bool is_owned(std::uint32_t touched) { return touched >= owned_fragment; }

struct Thread {
  char* stack = nullptr;
  std::uint32_t* touched =
      nullptr;                    ///< per 4 bytes of stack: the fence epoch of the last access, or an owner
  std::uint32_t fence_epoch = 0;  ///< counts wgmma fences
  std::uint32_t* stack_epoch = nullptr;  ///< the same, which goes on as long as the stack is used
  int index = 0;
  AbandonableFiber own, back;  ///< to continue the thread; to return to the scheduler
  bool done = false;
  const char* role = "thread";
  const void* code = nullptr;  ///< where the kernel called the last verb
  bool any_voted = false;      ///< at the last barrier that it came to with a predicate
  Wait wait;

  Clock clock;                 ///< what it knows
  Clock async_visible;         ///< of that, ordinary writes that a proxy fence has shown to the async proxy
  Clock async_visible_global;  ///< the same of global memory, by its own fence

  bool fenced = false;  ///< a wgmma fence was executed in this block
  std::vector<OwnedRegisters> owned_registers;
  Time products = 0;         ///< WGMMAs started
  std::vector<Time> groups;  ///< products started at each commit
  int registers = 0;
  std::size_t budget_changes = 0;  ///< setmaxnreg executed
  bool started_copies = false;
  bool after_prior_grid = false;                    ///< knows that the grid before has ended
  std::vector<std::uint32_t> stores;                ///< records of its asynchronous stores
  std::vector<std::size_t> store_groups;            ///< of these, started at each commit
  std::size_t stores_read = 0, stores_written = 0;  ///< of these, waited for
  std::int64_t collectives = 0, exchanges = 0;

  const char* stack_end() const { return stack + stack_bytes; }
  int lane() const { return index % warp_size; }
  int warp() const { return index / warp_size; }
  int warpgroup() const { return index / warpgroup_size; }
  Epoch now() const { return {static_cast<Agent>(index), clock[static_cast<Agent>(index)]}; }
};

/// An mbarrier. Counts live in its 8 bytes of shared memory (mbarrier.cpp); here is what those can't hold.
struct BarrierRecord {
  std::uint32_t offset = 0;
  int ordinal = 0;  ///< in order of initialisation
  Agent agent = no_agent;
  const void* code = nullptr;       ///< of its initialisation
  Epoch initialised, fenced;        ///< the init, and the fence that shows it to the async proxy
  Time phases = 0;                  ///< completed
  Time copies_until = 0;            ///< the number of phases after which all copies to it have landed
  const void* last_copy = nullptr;  ///< where the last of them was started
  Clock arrived, completed;         ///< released into the running phase, and into completed ones
  Clock arrived_async, completed_async;
  std::vector<Thread*> waiting;
};

struct NamedBarrier {
  std::uint32_t threads = 0;  ///< of the running phase; 0: nobody has come
  std::uint32_t arrived = 0;
  Clock clock, async_visible;
  std::vector<Thread*> waiting;
  bool votes = false;  ///< who comes says a predicate
  bool any = false;    ///< whether somebody's holds
};

/// Something that all lanes of a warp have to do alike.
struct Collective {
  const char* what;
  std::uint64_t argument;
  const void* code;
  int lanes = 0;
};

/// What one lane gives to the others of its warp: mma.sync's six words are the most.
using LaneWords = std::array<std::uint32_t, 6>;

struct Warp {
  std::deque<Collective> collectives;  ///< that some lanes have not come to
  std::int64_t first_collective = 0;   ///< number of the front one
  LaneWords exchange[2][warp_size];
  int exchanged[2] = {0, 0};
  std::vector<Thread*> waiting;
  int exited = 0;
  NamedBarrier barrier;  ///< bar.warp.sync
};

/// A setmaxnreg that all threads of a warpgroup have to execute.
struct BudgetChange {
  const char* what;
  int count;
  const void* code;
  std::size_t threads = 0;                      ///< that have
  std::array<Time, warpgroup_size> times = {};  ///< when; 0: not yet
};

/// One WGMMA of a warpgroup.
struct ProductInFlight {
  Product product;
  void* accumulators[warpgroup_size];
  const std::uint32_t* fragments[warpgroup_size];
  int threads = 0;  ///< that have come to it
  const void* code = nullptr;
  std::int64_t started = 0;  ///< by the trace's time
};

/// A warpgroup's matrix unit. Products execute in order.
struct MatrixUnit {
  std::deque<ProductInFlight> products;
  Time first = 1;   ///< number of the front one
  Time issued = 0;  ///< all 128 threads have come
  Time completed = 0;
  std::vector<Thread*> waiting;
};

/// A TMA box on its way.
struct CopyInFlight {
  TensorMap map;
  BoxCoordinates origin;
  std::uint32_t destination;  ///< offset
  BarrierRecord* barrier;
  Time phase;                       ///< of the barrier, as the copy was issued
  std::vector<std::uint32_t> rows;  ///< that have not landed, in the order in which they will
  int thread;
  const void* code;
  std::int64_t started;    ///< by the trace's time
  bool straggles = false;  ///< lands when hardly anything else can go on
};

/// An asynchronous store of the launch, and since when its thread knows what of it.
struct StoreRecord {
  int thread;
  const void* code;
  Epoch read;     ///< it does not read shared memory any more
  Epoch written;  ///< it has written global memory
};

/// An asynchronous store that has not written all of its box.
struct StoreInFlight {
  TensorMap map;
  BoxCoordinates origin;
  std::uint32_t source;  ///< offset
  bool adds;
  std::uint32_t record;
  std::vector<std::uint32_t> rows;  ///< that are to be written, the next one last
  std::vector<unsigned char> data;  ///< the box, row by row, once shared memory was read; else empty
  std::int64_t started;             ///< by the trace's time
};

/// Everything of the block that runs.
struct Block {
  int index = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<MatrixUnit> units;
  std::deque<BarrierRecord> barriers;      ///< records don't move
  std::vector<BarrierRecord*> barrier_at;  ///< by offset / 8
  std::vector<NamedBarrier> named{named_barriers};
  std::deque<CopyInFlight> copies;
  std::deque<StoreInFlight> stores;
  std::deque<Thread*> ready;
  SharedShadow shadow;
  int pool = 0;                                    ///< registers that warpgroups have released
  std::vector<std::vector<BudgetChange>> budgets;  ///< a warpgroup
  std::vector<Thread*> waiting_for_registers;
  int alive = 0;
  std::vector<Epoch> prior_grid_waits;  ///< of threads for the grid before
  std::vector<Thread*> waiting_for_counters;
  unsigned char* window = nullptr;  ///< its shared memory
  int arena = 0;                    ///< number of the stacks that it uses
};

struct Machine {
  const LaunchConfig* config = nullptr;
  Report report;
  Block block;                      ///< that runs
  std::deque<Block> parked;         ///< others that have begun and not ended
  bool wants_another = false;       ///< the running thread has come to where blocks take turns
  Thread* running = nullptr;        ///< null outside of fibers
  bool in_hook = false;             ///< keeps accesses of the machine itself out of its own hooks
  unsigned char* window = nullptr;  ///< of the block that runs
  GlobalShadow global;
  std::vector<StoreRecord> stores;  ///< of the launch
  bool waited_for_prior_grid = false;
  std::mt19937_64 random;
  std::int64_t verbs = 0;  ///< executed: the time of a trace

  Agent agents() const;
  Agent agent_of_unit(int warpgroup) const { return static_cast<Agent>(config->threads + warpgroup); }
  std::uint64_t draw(std::uint64_t bound) { return random() % bound; }
  bool chance(int one_in) { return config->policy == Policy::random && draw(one_in) == 0; }
};

extern Machine machine;

// ---- scheduler.cpp
/// The thread that runs; remembers where its kernel called.
inline Thread& enter(const void* code) {
  ++machine.verbs;
  machine.running->code = code;
  return *machine.running;
}
#define TANDEM_SIM_ENTER() enter(__builtin_return_address(0))

[[noreturn]] void abandon();  ///< back to the scheduler for good
void suspend();               ///< back to the scheduler; somebody has to make the thread ready
void yield();                 ///< back to the scheduler, ready
void perturb();               ///< under Policy::random: perhaps yield
void wake(std::vector<Thread*>& waiting);
void wake_counters();  ///< those who wait for counters, in all blocks
/// Adds a wait that has ended to the trace, if there is one.
void trace_wait(const Thread& thread, Wait wait, std::int64_t began);
/// Blocks until `condition`; `waiting` is woken when it may have changed.
template <typename Condition>
void wait_until(Thread& thread, std::vector<Thread*>& waiting, Wait wait, Condition&& condition) {
  const std::int64_t began = machine.verbs;
  if (machine.config->policy == Policy::late || machine.chance(4)) yield();
  thread.wait = wait;
  while (!condition()) {
    waiting.push_back(&thread);
    suspend();
  }
  thread.wait = {};
  trace_wait(thread, wait, began);
}

// ---- fault.cpp
/// Something else that a fault has to do with, and where in the kernel.
struct Related {
  std::string text;
  const void* code;
};
/// Records the running thread's fault and stops the launch.
[[noreturn]] void fail(Rule rule, const std::string& what, const std::vector<Related>& related = {},
                       std::source_location check = std::source_location::current());
/// Records a fault of `subject` (null: of the block) without leaving the caller.
void record(Rule rule, const Thread* subject, const std::string& what,
            const std::vector<Related>& related = {},
            std::source_location check = std::source_location::current());
/// Whether two calls of verbs are the same one of the source, by the lines of all functions that are inlined.
bool same_place(const void* code, const void* other);
std::string describe(const Thread& thread);
std::string describe(const BarrierRecord& barrier);

// ---- asynchronous work
/// tma.cpp: one piece (or all) of one copy, of those that straggle too or of the others; false: none in
/// flight
bool land_copy(bool everything, bool stragglers);
bool land_store();                      ///< tma_store.cpp: some rows of one store; false: none in flight
void land_all_stores();                 ///< tma_store.cpp: at the end of the block
void disown_registers(Thread& thread);  ///< wgmma.cpp: forgets what its products use
bool execute_product();                 ///< wgmma.cpp: the next product of one unit; false: none issued
void complete_bytes(BarrierRecord& barrier, std::uint32_t bytes, const CopyInFlight& copy);  ///< mbarrier.cpp
/// mbarrier.cpp: the barrier at an address, which the running thread has to know to be initialised.
BarrierRecord& find_barrier(const Barrier& barrier, const Thread& thread);
void fence_own_barriers(const Thread& thread);  ///< mbarrier.cpp: their initialisation, for the async proxy
/// mbarrier.cpp: bytes that a phase waits for though all arrivals have come.
std::int64_t missing_bytes(const BarrierRecord& barrier);
void check_finished(const BarrierRecord& barrier);  ///< mbarrier.cpp: at the end of the block

// ---- warp.cpp
/// All lanes of the warp have to do this as their next collective; `aligned`: at the same place, as PTX's
/// .aligned asks for.
enum class Alignment { any_place, same_place };
void converge(Thread& thread, const char* what, std::uint64_t argument = 0,
              Alignment alignment = Alignment::same_place);
/// Converges, and all lanes give words; returns everybody's. Lanes that are ahead exchange their next words
/// while others still read the last ones, but not the ones after that: two buffers.
const LaneWords* exchange(Thread& thread, const LaneWords& words, const char* what,
                          std::uint64_t argument = 0, Alignment alignment = Alignment::same_place);

// ---- registers.cpp
void check_budgets();  ///< at the end of the block

// ---- global memory
/// A fault if the grid before may still run. `what`: what the thread uses of global memory.
void require_prior_grid(Thread& thread, const char* what);

// ---- shared memory
/// Offset of an address in the window, or a fault.
std::uint32_t offset_of(const void* address, std::size_t bytes, const char* what);
/// An ordinary access of the running thread, checked; returns the offset.
std::uint32_t access_shared(const void* address, std::size_t bytes, bool write, const void* code);

/// Ends every release: what comes later is not part of it.
inline void tick(Thread& thread) { ++thread.clock[static_cast<Agent>(thread.index)]; }

}  // namespace tandem::hw::sim
