// What happened when in a launch, for a timeline. Time is the number of verbs that all threads have executed:
// it orders, and shows what was in flight together, but does not measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::hw::sim {

class Trace {
 public:
  /// Something that lasted, on a row of the timeline.
  struct Span {
    std::string row, what;
    std::int64_t begin, end;
  };

  void add(std::string row, std::string what, std::int64_t begin, std::int64_t end) {
    spans_.push_back({std::move(row), std::move(what), begin, end});
  }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
};

}  // namespace tandem::hw::sim
