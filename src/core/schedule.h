// Schedule: which tile of queries a block works on, and in which order.
#pragma once

#include <bit>
#include <cstdint>
#include <numeric>

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
///
/// Heads (of all batch entries) come in sections. Within a section the order is by length, longest first,
/// where later queries see more keys (causal masks), so that the loads of the blocks even out; otherwise it
/// is head after head, so that tiles which share K and V run at the same time.
class Schedule {
 public:
  constexpr Schedule() = default;
  /// For tiles of equal length.
  constexpr Schedule(int m_blocks, int heads, int batch) : Schedule(m_blocks, heads, batch, false, 1) {}

  /// For tiles that get longer with the query, on a grid of `grid` blocks.
  static constexpr Schedule longest_first(int m_blocks, int heads, int batch, int grid) {
    return {m_blocks, heads, batch, true, section_heads(m_blocks, heads * batch, grid)};
  }

  constexpr std::int64_t tiles() const { return tiles_; }

  /// Position in the order of what `block` does in `round`. Dealt back and forth: whoever got the longest
  /// tile of a round gets the shortest of the next. Past the end there is nothing left in this round.
  static constexpr std::int64_t position(int round, int block, int grid) {
    return std::int64_t{round} * grid + (round % 2 == 0 ? block : grid - 1 - block);
  }

  constexpr Tile tile(int position) const {
    const auto [section, within] = section_tiles_.divide(position);
    const auto [rank, head_of_section] =
        (section == full_sections_ ? last_heads_ : section_heads_).divide(within);
    const auto [batch, head] = heads_.divide(section * section_heads_.value() + head_of_section);
    return {longest_first_ ? m_blocks_ - 1 - rank : rank, head, batch};
  }

 private:
  constexpr Schedule(int m_blocks, int heads, int batch, bool longest_first, int section_heads)
      : tiles_(std::int64_t{m_blocks} * heads * batch),
        longest_first_(longest_first),
        m_blocks_(m_blocks),
        full_sections_(heads * batch / section_heads),
        section_tiles_(at_least_one(m_blocks * section_heads)),
        section_heads_(section_heads),
        last_heads_(at_least_one(heads * batch % section_heads)),
        heads_(at_least_one(heads)) {}

  /// The fewest heads whose tiles fill a whole number of double rounds (there and back): a section that is
  /// balanced in itself, with no more K and V in use at a time than need be. Anything but whole would shift
  /// the deal of all later sections, so then it is all heads.
  static constexpr int section_heads(int m_blocks, int all_heads, int grid) {
    const int double_round = 2 * at_least_one(grid);
    const int heads = double_round / std::gcd(double_round, at_least_one(m_blocks));
    return at_least_one(heads < all_heads ? heads : all_heads);
  }
  static constexpr int at_least_one(int n) { return n < 1 ? 1 : n; }

  std::int64_t tiles_ = 0;
  bool longest_first_ = false;
  int m_blocks_ = 0, full_sections_ = 0;
  Divisor section_tiles_, section_heads_, last_heads_, heads_;
};

}  // namespace tandem::core
