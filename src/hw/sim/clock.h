// Vector clocks: what a thread knows to have happened.
//
// Agents are threads, each warpgroup's matrix unit, and barriers (whose time is the number of completed
// phases). An event at time t of agent a happened before all that knows a's time as t or later. Agents are a
// block's; what is known of other blocks, which atomics tell, is kept beside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tandem::hw::sim {

using Time = std::uint32_t;
using Agent = std::uint16_t;
inline constexpr Agent no_agent = 0xffff;

/// An event: an agent and its time.
struct Epoch {
  Agent agent = no_agent;
  Time time = 0;

  bool exists() const { return agent != no_agent; }
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

/// One time for each agent.
class Clock {
 public:
  Clock() = default;
  explicit Clock(std::size_t agents) : times_(agents, 0) {}

  /// Forgets all, and keeps the memory.
  void reset(std::size_t agents);

  Time& operator[](Agent agent) { return times_[agent]; }
  Time operator[](Agent agent) const { return times_[agent]; }
  bool knows(Epoch event) const { return times_[event.agent] >= event.time; }
  /// An event of another block, which has ended.
  bool knows(int block, Epoch event) const;
  /// Learns all that `other` knows.
  void join(const Clock& other);
  /// Learns all that `other`, a clock of another block, knew.
  void join(int block, const Clock& other);

 private:
  /// The times of other blocks' agents; whoever knows the same shares them.
  using Times = std::shared_ptr<const std::vector<Time>>;
  using Others = std::map<int, Times>;

  static bool covers(const Others& own, const Others& other);
  void join(const std::shared_ptr<const Others>& other);

  std::vector<Time> times_;
  std::shared_ptr<const Others> others_;
};

}  // namespace tandem::hw::sim
