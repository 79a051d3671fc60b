// Which query of which head each row of a tile is.
#pragma once

namespace tandem::forward {

/// Query heads that share keys and values are taken together, so that a few queries of each fill a tile's
/// rows: row r of a pack is query r / heads() of its head r % heads(). Packs of one head are plain rows.
struct Packing {
  /// A consumer has so many rows. No query is split between two of them, so that one TMA box has them all.
  static constexpr int most_heads = 64;

  int log2_heads = 0;

  constexpr int heads() const { return 1 << log2_heads; }
  constexpr int query(int row) const { return row >> log2_heads; }
  /// Head of the tensor. `pack`: number of the pack.
  constexpr int head(int pack, int row) const { return (pack << log2_heads) + (row & (heads() - 1)); }
};

}  // namespace tandem::forward
