// Vector clocks: what a thread knows to have happened.
//
// Agents are threads, each warpgroup's matrix unit, and barriers (whose time is the number of completed
// phases). An event at time t of agent a happened before all that knows a's time as t or later.
#pragma once

#include <cstddef>
#include <cstdint>
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

  Time& operator[](Agent agent) { return times_[agent]; }
  Time operator[](Agent agent) const { return times_[agent]; }
  bool knows(Epoch event) const { return times_[event.agent] >= event.time; }
  /// Learns all that `other` knows.
  void join(const Clock& other);

 private:
  std::vector<Time> times_;
};

}  // namespace tandem::hw::sim
