// Schedule: which tile of queries a block works on, and in which order.
#pragma once

#include <cstdint>

namespace tandem::core {

/// One tile of work: `block_m` consecutive queries of one head of one batch entry.
struct Tile {
  int m_block, head, batch;
};

/// A static persistent schedule. The tiles of a section (as many heads as keep their K and V in L2) come before the next
/// section's; within it the longest tiles come first (for causal masks those with the last queries). The blocks of the
/// grid deal the sequence out back and forth, so that whoever got the longest tile of one round gets the shortest of the
/// next.
struct Schedule {
  int m_blocks, heads, batch;
  int section_heads;   ///< heads (over all batch entries) a section holds, >= 1
  bool longest_first;  ///< later queries see more keys

  constexpr std::int64_t tiles() const { return std::int64_t{m_blocks} * heads * batch; }

  /// Position in the sequence of what `block` does in `round`; past the end: nothing left in this round.
  constexpr std::int64_t position(int round, int block, int grid) const {
    return std::int64_t{round} * grid + (round % 2 == 0 ? block : grid - 1 - block);
  }

  constexpr Tile tile(int position) const {
    const int section_tiles = m_blocks * section_heads;
    const int section = position / section_tiles, within = position % section_tiles;
    const int first_head = section * section_heads, rest = heads * batch - first_head;
    const int heads_here = rest < section_heads ? rest : section_heads;
    const int rank = within / heads_here, head = first_head + within % heads_here;
    return {longest_first ? m_blocks - 1 - rank : rank, head % heads, head / heads};
  }
};

}  // namespace tandem::core
