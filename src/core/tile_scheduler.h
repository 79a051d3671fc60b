// TileScheduler: which tile of queries a block works on, and in which order.
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
        multiplier_(static_cast<std::uint32_t>(
            ((std::uint64_t{1} << shift_) + static_cast<std::uint32_t>(divisor) - 1) /
            static_cast<std::uint32_t>(divisor))) {}

  constexpr int value() const { return divisor_; }
  constexpr Result divide(int dividend) const {
    const std::uint64_t product = std::uint64_t{static_cast<std::uint32_t>(dividend)} * multiplier_;
    const auto quotient = static_cast<int>(product >> shift_);
    return {quotient, dividend - quotient * divisor_};
  }

 private:
  int divisor_ = 1, shift_ = 31;
  std::uint32_t multiplier_ = std::uint32_t{1} << 31;
};

/// One tile of work: `block_m` consecutive queries of one head of one batch entry. Heads that are packed
/// together (forward/packing.h) count as one, whose queries are the rows of the pack.
struct Tile {
  int m_block, head, batch;

  static constexpr int none = -1;
  /// Otherwise there is nothing to do in this round, but there may be in later ones.
  constexpr bool exists() const { return m_block != none; }
};

/// A static persistent schedule: the order of tiles, and how the blocks of the grid share it.
///
/// Heads (of all batch entries) come in sections. Within a section the order is by length, longest first,
/// where later queries see more keys (causal masks), so that the loads of the blocks even out; otherwise it
/// is head after head, so that tiles which share K and V run at the same time. There the last tile of a head
/// may have fewer rows and take less time, so each block gets it as often as the others.
class TileScheduler {
 public:
  constexpr TileScheduler() = default;
  /// For tiles of equal length, on a grid of `grid` blocks.
  constexpr TileScheduler(int m_blocks, int heads, int batch, int grid)
      : TileScheduler({m_blocks, heads, batch, grid}, {1, m_blocks, 1, 0, false}) {
    // Of a number of tiles that divides the grid, each block would get the same one of every head.
    while (std::gcd(grid_.value() + shift_, at_least_one(m_blocks)) > 1) ++shift_;
  }

  /// For tiles that get longer with the query, on a grid of `grid` blocks. The keys and values of
  /// `cached_heads` heads stay in L2.
  static constexpr TileScheduler longest_first(int m_blocks, int heads, int batch, int grid,
                                               int cached_heads) {
    return {{m_blocks, heads, batch, grid}, balanced_section(m_blocks, heads * batch, grid, cached_heads)};
  }

  /// The same tiles head after head, the longest one of each first.
  static constexpr TileScheduler head_by_head(int m_blocks, int heads, int batch, int grid) {
    return {{m_blocks, heads, batch, grid}, {1, m_blocks, 1, 0, true}};
  }

  /// For tiles of which a later one of a head waits for the one before, and is no longer: the first ones of
  /// `section_heads` heads come first, then the second ones, so that those are ahead. Whoever is free takes
  /// the next position. The last section has so many heads that they have `last_tiles` tiles, or all.
  static constexpr TileScheduler staggered(int m_blocks, int heads, int batch, int section_heads,
                                           int last_tiles = 0) {
    return {{m_blocks, heads, batch, 1}, {section_heads, section_heads * m_blocks, 1, last_tiles, false}};
  }

  /// Where the order ends. Of no more than 2^30 tiles: a section is filled up by a third at most.
  constexpr int positions() const { return positions_; }

  /// Position in the order of what `block` does in `round`. Past the end there is nothing left in this round.
  constexpr int position(int round, int block) const {
    const int onward = round * grid_.value() + grid_.divide(block + round * shift_).remainder;
    return longest_first_ ? there_and_back(round, block, grid_.value()) : onward;
  }
  /// The same where tiles may have falling lengths: whoever got the longest of a round gets the shortest of
  /// the next. Of equal ones, blocks may get the same one of every head.
  static constexpr int there_and_back(int round, int block, int grid) {
    return round * grid + (round % 2 == 0 ? block : grid - 1 - block);
  }

  /// How many tiles of its head come before it in the order.
  constexpr int rank(const Tile& tile) const {
    return longest_first_ ? m_blocks_ - 1 - tile.m_block : tile.m_block;
  }
  /// So many heads, one after another, have tiles between the first and the last of one of them, at most.
  constexpr int heads_of_section() const {
    const int whole = full_sections_ > 0 ? section_heads_.value() : 1;
    return whole < last_heads_.value() ? last_heads_.value() : whole;
  }

  constexpr Tile tile(int position) const {
    auto [section, within] = section_positions_.divide(position);
    if (section > full_sections_) {  // the last one may be longer
      within += (section - full_sections_) * section_positions_.value();
      section = full_sections_;
    }
    const bool exists = section >= full_sections_ || within < m_blocks_ * section_heads_.value();
    const auto [rank, head_of_section] =
        (section == full_sections_ ? last_heads_ : section_heads_).divide(within);
    const auto [batch, head] = heads_.divide(section * section_heads_.value() + head_of_section);
    const int m_block = longest_first_ ? m_blocks_ - 1 - rank : rank;
    return {exists ? m_block : Tile::none, head, batch};
  }

 private:
  struct Shape {
    int m_blocks, heads, batch, grid;
  };
  struct Section {
    int heads, positions;  ///< positions may be more than tiles: then its end is left empty
    int together;          ///< so many sections balance
    int fewest_tiles;      ///< of the last section, to balance
    bool longest_first;
  };

  constexpr TileScheduler(const Shape& shape, const Section& section)
      : longest_first_(section.longest_first),
        m_blocks_(shape.m_blocks),
        grid_(at_least_one(shape.grid)),
        heads_(at_least_one(shape.heads)) {
    const int all = shape.heads * shape.batch, sections = all / section.heads;
    full_sections_ = sections - sections % section.together;
    const auto rest = [&] { return all - full_sections_ * section.heads; };
    // A few heads alone would not balance, so they join the sections before.
    while (full_sections_ > 0 && std::int64_t{rest()} * shape.m_blocks < section.fewest_tiles)
      full_sections_ -= section.together;
    const int last = rest();
    section_positions_ = Divisor(at_least_one(section.positions));
    section_heads_ = Divisor(section.heads);
    last_heads_ = Divisor(at_least_one(last));
    positions_ = full_sections_ * section.positions + last * shape.m_blocks;
  }

  /// Sections balance in themselves, or two by two, with no more K and V in use at a time than need be.
  static constexpr Section balanced_section(int m_blocks, int all_heads, int grid, int cached_heads) {
    const int round = at_least_one(grid), double_round = 2 * round;  // there and back
    // Whole rounds. Where they are odd, the next section goes the other way; and where it is one, long
    // and short tiles run at the same time, and do not all want memory at once.
    const int whole = round / std::gcd(round, at_least_one(m_blocks));
    const int exact = at_least_one(whole < all_heads ? whole : all_heads);
    const int together = whole * m_blocks / round % 2 == 0 ? 1 : 2;
    const int fewest_tiles = double_round * 3 / 4;
    // Where that is more than L2 holds: the most heads that it does and that nearly fill whole double rounds.
    // The places left empty come after the shortest tiles, and fall to the blocks that had the longest; with
    // few lengths that is too coarse.
    for (int heads = m_blocks < fewest_lengths ? 0 : cached_heads; heads > 0 && heads < exact; --heads) {
      const std::int64_t tiles = std::int64_t{heads} * m_blocks;
      const std::int64_t positions = (tiles + double_round - 1) / double_round * double_round;
      if (20 * (positions - tiles) <= positions)
        return {heads, static_cast<int>(positions), 1, fewest_tiles, true};
    }
    const RoundedSection rounded = rounded_section(m_blocks, round, cached_heads, exact);
    if (rounded.heads > 0) return {rounded.heads, rounded.rounds * round, 1, fewest_tiles, true};
    return {exact, m_blocks * exact, together, fewest_tiles, true};
  }
  static constexpr int fewest_lengths = 32;

  struct RoundedSection {
    int heads, rounds;  ///< no heads: there is none
  };
  /// Where `exact` heads are more than L2 holds: as many heads as fill a few rounds best, that L2 holds, or
  /// nearly does. Missing tiles leave places empty after the shortest ones; what that costs is judged by
  /// how long they are beside a block's share of the section. The more L2 has to hold, the more it may cost.
  static constexpr RoundedSection rounded_section(int m_blocks, int grid, int cached_heads, int exact) {
    constexpr int most_rounds = 12, most_excess = 3;
    constexpr double worthwhile = 0.05;
    if (10 * exact <= 11 * cached_heads || m_blocks < 1) return {0, 0};
    for (int excess = 1; excess <= most_excess; ++excess) {
      RoundedSection best{0, 0};
      double least = worthwhile * excess;
      for (int rounds = 1; rounds <= most_rounds; ++rounds) {
        const int heads = static_cast<int>(std::int64_t{rounds} * grid / m_blocks);
        if (heads < 1 || heads > excess * cached_heads || heads >= exact) continue;
        const double missing = static_cast<double>(rounds * grid - heads * m_blocks);
        const double uneven = missing == 0 ? 0 : (missing / heads + 1) / (rounds * (0.5 * m_blocks + 1));
        if (uneven < least) least = uneven, best = {heads, rounds};
      }
      if (best.heads > 0) return best;
    }
    return {0, 0};
  }

  static constexpr int at_least_one(int n) { return n < 1 ? 1 : n; }

  int positions_ = 0;
  bool longest_first_ = false;
  int m_blocks_ = 0, full_sections_ = 0;
  int shift_ = 0;  ///< from round to round, where tiles are of equal length
  Divisor grid_, section_positions_, section_heads_, last_heads_, heads_;
};

}  // namespace tandem::core
