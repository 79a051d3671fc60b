// Schedule: which tile of queries a block works on, and in which order.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem::core {

/// Division of numbers below 2^31 by a divisor that is known before they are: a multiplication and a shift.
/// Source: Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
class Divisor {
 public:
  struct Result {
    int quotient, remainder;
  };

  constexpr Divisor() = default;
  /// `divisor` is at least 1.
  constexpr explicit Divisor(int divisor)
      : divisor_(divisor),
        shift_(31 + std::bit_width(static_cast<std::uint32_t>(divisor - 1))),
        multiplier_(((std::uint64_t{1} << shift_) + static_cast<std::uint32_t>(divisor) - 1) /
                    static_cast<std::uint32_t>(divisor)) {}

  constexpr int value() const { return divisor_; }
  constexpr Result divide(int dividend) const {
    const auto quotient = static_cast<int>((static_cast<std::uint64_t>(dividend) * multiplier_) >> shift_);
    return {quotient, dividend - quotient * divisor_};
  }

 private:
  int divisor_ = 1, shift_ = 31;
  std::uint64_t multiplier_ = std::uint64_t{1} << 31;  // below 2^32
};

/// One tile of work: `block_m` consecutive queries of one head of one batch entry.
struct Tile {
  int m_block, head, batch;
};

/// A static persistent schedule: the order of tiles, and how the blocks of the grid deal it out.
class Schedule {
 public:
  /// longest_first: later queries see more keys, as under causal masks. Then the tiles of all heads come in
  /// descending order of length, so that the loads of the blocks even out; otherwise head after head, so that
  /// tiles that share K and V run at the same time.
  constexpr Schedule() = default;
  constexpr Schedule(int m_blocks, int heads, int batch, bool longest_first)
      : tiles_(std::int64_t{m_blocks} * heads * batch),
        longest_first_(longest_first),
        m_blocks_(m_blocks),
        inner_(at_least_one(longest_first ? heads * batch : m_blocks)),
        heads_(at_least_one(heads)) {}

  constexpr std::int64_t tiles() const { return tiles_; }

  /// Position in the order of what `block` does in `round`. Dealt back and forth: whoever got the longest
  /// tile of a round gets the shortest of the next. Past the end there is nothing left in this round.
  static constexpr std::int64_t position(int round, int block, int grid) {
    return std::int64_t{round} * grid + (round % 2 == 0 ? block : grid - 1 - block);
  }

  constexpr Tile tile(int position) const {
    const auto [outer, inner] = inner_.divide(position);
    const auto [batch, head] = heads_.divide(longest_first_ ? inner : outer);
    return {longest_first_ ? m_blocks_ - 1 - outer : inner, head, batch};
  }

 private:
  static constexpr int at_least_one(int n) { return n < 1 ? 1 : n; }

  std::int64_t tiles_ = 0;
  bool longest_first_ = false;
  int m_blocks_ = 0;
  Divisor inner_, heads_;
};

}  // namespace tandem::core
