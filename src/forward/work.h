// Which tiles a block walks, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/schedule.h"
#include "forward/arguments.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// One tile of queries and its walk over the key blocks that it meets.
struct Work {
  core::Tile tile;
  int first_row;  ///< of its pack's; negative: there is no more work
  core::BlockWalk walk;

  static constexpr int none = -1;
  TANDEM_DEVICE bool exists() const { return first_row >= 0; }
};

/// Last key first, a causal mask's diagonal comes before the loop over full blocks, where it overlaps with
/// nothing anyway. Wide heads lose more by it: tiles that run at the same time begin at different keys then,
/// and fetch more at once (docs/performance.md).
template <ForwardVariant V>
inline constexpr core::Direction direction =
    V.head_dim <= 128 ? core::Direction::last_key_first : core::Direction::first_key_first;

TANDEM_DEVICE int position_of_round(int round) {
  return core::Schedule::position(round, static_cast<int>(hw::block_index()),
                                  static_cast<int>(hw::grid_size()));
}

/// What this block does in `round`, by the schedule, if anything. No branches: it may stand among other code.
template <ForwardVariant V>
TANDEM_DEVICE Work work_of_round(const ForwardArguments& args, int round) {
  const int position = position_of_round(round);
  const core::Tile tile = args.schedule.tile(position);
  const bool exists = position < args.schedule.positions() && tile.exists();
  const int first_row = tile.m_block * V.block_m;
  const int first = args.packing.query(first_row), end = args.packing.query(first_row + V.block_m);
  const int past = end < args.q_len ? end : args.q_len;
  const auto blocks = core::block_ranges(args.mask, first, past, args.q_len, args.k_len, V.block_n);
  return {tile, exists ? first_row : Work::none, core::walk(blocks, direction<V>)};
}

/// What this block does in `round` or in the first later one in which it does something: `round` is moved
/// there.
template <ForwardVariant V>
TANDEM_DEVICE Work find_work(const ForwardArguments& args, int& round) {
  Work work = work_of_round<V>(args, round);
  while (!work.exists() && position_of_round(round) < args.schedule.positions()) {
    work = work_of_round<V>(args, ++round);
  }
  return work;
}

/// Where the box of the tile's rows from `row` on begins. In maps of packs the heads come before the queries
/// (hw::BoxRows).
TANDEM_DEVICE hw::BoxOrigin box_of_rows(const ForwardArguments& args, const core::Tile& tile, int row) {
  const int query = args.packing.query(row), head = args.packing.head(tile.head, row);
  if (args.packing.heads() > 1) return {0, head, query, tile.batch};
  return {0, query, head, tile.batch};
}

}  // namespace tandem::forward
