// In which order tiles of keys are taken, or handed out.
#pragma once

#include "core/tile_scheduler.h"

namespace tandem::backward {

/// Where it pays that sections of heads overlap (docs/performance/backward.md, Sections that overlap,
/// measured): causal masks without groups, and
struct SectionOverlap {
  static constexpr int fewest_tiles = 4;     ///< of a head
  static constexpr int fewest_rounds = 5;    ///< of the grid, that all tiles are
  static constexpr int fewest_sections = 3;  ///< of heads
  /// At head dim 128, from so many tiles of a head on, a visit takes long beside its wait. Each of two
  /// sections that are worked on at a time then has as many heads as L2 holds; else both together.
  static constexpr int many_tiles = 9;
};

/// Tiles of keys, those of a head in order from its first keys on: with a causal mask the longest first.
///
/// Heads (of all batch entries) come in sections. These follow one another, as a TileScheduler has them; or
/// they overlap: a section begins when the one before has given out half of its tiles, and both take turns, a
/// tile of each of their heads at a time. A tile waits for the one before of its head (ring.h). Where
/// sections overlap, more time lies between the two, and short tiles run beside long ones.
class KeyOrder {
 public:
  constexpr KeyOrder() = default;
  constexpr explicit KeyOrder(const core::TileScheduler& sections)
      : sections_(sections), positions_(sections.positions()), heads_at_work_(sections.heads_of_section()) {}
  /// Sections of `section_heads` heads that overlap.
  static constexpr KeyOrder overlapping(int tiles, int heads, int batch, int section_heads) {
    KeyOrder order;
    order.tiles_ = tiles;
    order.half_ = (tiles + 1) / 2;
    order.all_heads_ = heads * batch;
    order.phase_ = core::Divisor(2 * section_heads * order.half_);
    order.row_ = core::Divisor(2 * section_heads);
    order.heads_ = core::Divisor(heads);
    const int sections = (order.all_heads_ + section_heads - 1) / section_heads;
    order.positions_ = (sections + 1) * order.phase_.value();
    order.heads_at_work_ = 2 * section_heads;
    return order;
  }

  /// Where the order ends.
  constexpr int positions() const { return positions_; }
  /// When the first tile of a head comes, all tiles of the head that is so many before it have come.
  constexpr int heads_at_work() const { return heads_at_work_; }

  /// Its m_block is its number among the tiles of its head, from the first keys on.
  constexpr core::Tile tile(int position) const {
    if (half_ > 0) return overlapping_tile(position);
    const core::Tile tile = sections_.tile(position);
    return tile.exists() ? core::Tile{sections_.rank(tile), tile.head, tile.batch} : tile;
  }

 private:
  /// A phase has the second half of a section, and the first half of the next one.
  constexpr core::Tile overlapping_tile(int position) const {
    const auto [phase, within] = phase_.divide(position);
    const auto [row, column] = row_.divide(within);
    const int section_heads = row_.value() / 2;
    const int number = column < section_heads ? half_ + row : row;
    const int place = (phase - 1) * section_heads + column;
    if (place < 0 || place >= all_heads_ || number >= tiles_) return {core::Tile::none, 0, 0};
    const auto [batch, head] = heads_.divide(place);
    return {number, head, batch};
  }

  core::TileScheduler sections_;
  int positions_ = 0, heads_at_work_ = 1;
  int tiles_ = 0, half_ = 0;  ///< half_ 0: sections do not overlap
  int all_heads_ = 0;
  core::Divisor phase_, row_, heads_;
};

}  // namespace tandem::backward
