// A workspace for one call of the fast backend, with guards around it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace tandem::test {

/// Exactly the bytes that a backend asks for, aligned to 256, poisoned with NaN.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes), memory_(bytes_ + 2 * guard + alignment, poison) {
    void* start = memory_.data() + guard;
    std::size_t space = bytes_ + alignment;
    data_ = static_cast<unsigned char*>(std::align(alignment, bytes_, start, space));
  }

  void* data() { return data_; }

  bool guards_intact() const {
    const auto holds = [](const unsigned char* begin, const unsigned char* end) {
      return std::all_of(begin, end, [](unsigned char byte) { return byte == poison; });
    };
    return holds(memory_.data(), data_) && holds(data_ + bytes_, memory_.data() + memory_.size());
  }

 private:
  static constexpr std::size_t guard = 4096, alignment = 256;
  static constexpr unsigned char poison = 0xff;

  std::size_t bytes_;
  std::vector<unsigned char> memory_;
  unsigned char* data_;
};

}  // namespace tandem::test
