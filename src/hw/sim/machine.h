// The software Hopper, from outside: launches kernels that are written over the verbs of hw/hw.h.
//
// One fiber is one thread; blocks run one after another, or in turns where they wait for one another. What a
// kernel may not do on the chip is a fault with a name (fault.h); docs/simulator.md is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hw/sim/fault.h"
#include "hw/types.h"

namespace tandem::hw::sim {

class Trace;

/// When asynchronous work takes effect, and in which order threads run.
enum class Policy {
  eager,  ///< copies and products finish as they are issued; threads run in turn
  late,   ///< nothing finishes until no thread can go on without it; the thread that came last runs first
  random  ///< seeded times, orders, pieces, thread switches and spurious wake-ups
};
const char* name_of(Policy policy);

/// Global memory that the kernel may touch. Where buffers are given, every other global access is a fault.
struct Buffer {
  const void* data;
  std::size_t bytes;
  const char* name;
  bool writable;
  bool uninitialised = false;  ///< what was there before the launch is nobody's to use
};

struct LaunchConfig {
  int blocks = 1;
  int threads = 128;     ///< a block; a multiple of 32, at most 1024
  int shared_bytes = 0;  ///< a block; at most max_shared_bytes
  bool early = false;    ///< begins while the grid before may still run
  /// Runs beside the grid before, of which it reads nothing: only its end has to wait for it.
  bool beside = false;
  bool next_beside = false;  ///< the grid behind does so: this one lets it begin once it has waited itself
  int registers_per_thread = 0;  ///< 0: 65536 over all threads, rounded down to a multiple of 8
  Policy policy = Policy::eager;
  std::uint64_t seed = 1;
  std::vector<Buffer> buffers;             ///< empty: global accesses are not checked
  std::int64_t max_switches = 50'000'000;  ///< of threads; a launch that takes more will never end
  std::string replay;                      ///< the command that repeats this launch, for the report
  Trace* trace = nullptr;                  ///< where given, what happened when (trace.h)
};

struct Statistics {
  std::int64_t switches = 0;  ///< of fibers
  std::int64_t copies = 0;    ///< TMA boxes
  std::int64_t products = 0;  ///< WGMMA instructions
};

/// What came of a launch: the first fault, if there was one. The launch stops at it.
struct Report {
  std::optional<Fault> fault;
  Statistics statistics;

  bool ok() const { return !fault.has_value(); }
  /// The fault in words: rule, thread, role, source lines, and how to replay it; "" where there is none.
  std::string text() const;
};

/// Runs `body` once for every thread of every block. One launch at a time in a process.
Report launch(const LaunchConfig& config, const std::function<void()>& body);

/// What the launcher of a kernel passes to cuTensorMapEncodeTiled. Elements of 4 bytes are fp32.
struct TensorMapSpec {
  const void* address;            ///< multiple of 16
  std::uint64_t dims[5];          ///< in elements, innermost first
  std::uint64_t stride_bytes[4];  ///< of all but the innermost; multiples of 16
  std::uint32_t box[5];           ///< in elements; at most 256 each
  Swizzle swizzle = Swizzle::bytes128;
  std::uint32_t element_bytes = 2;
  int rank = 4;  ///< or 5
};

/// The simulator's tensor map, or throws std::invalid_argument with what cuTensorMapEncodeTiled would refuse.
TensorMap encode_tensor_map(const TensorMapSpec& spec);

}  // namespace tandem::hw::sim
