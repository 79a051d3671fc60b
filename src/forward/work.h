// Which tiles a block visits, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/tile_list.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// Rows of a tile that visit the same blocks.
struct TileRows {
  int first, count;
};

/// One tile of queries, and the loop of some of its rows over the key blocks that they meet.
struct Work {
  core::Tile tile;
  int first_row;  ///< the tile's, of its pack's; negative: there is no more work
  core::BlockLoop loop;
  core::BlocksAside aside;  ///< what the tile visits without these rows

  static constexpr int none = -1;
  TANDEM_DEVICE bool exists() const { return first_row >= 0; }
};

/// Bands go there and back always: at d64 the choice (core/tile_scheduler.h) costs their kernels
/// registers that they don't have.
template <ForwardVariant V>
TANDEM_DEVICE int position_of_round(const core::TileScheduler& schedule, int round) {
  const auto block = static_cast<int>(hw::block_index());
  if (V.mask == MaskKind::prefix && V.lengths == Lengths::uniform) return schedule.position(round, block);
  return core::TileScheduler::there_and_back(round, block, static_cast<int>(hw::grid_size()));
}

/// The mask as the kernel knows it.
template <ForwardVariant V>
TANDEM_DEVICE auto mask_of(const ForwardArguments& args) {
  if constexpr (V.mask == MaskKind::band) {
    return args.mask;
  } else {
    return core::PrefixMask{args.mask.right};
  }
}

/// Of the queries of so many rows of a pack, from `row` on.
template <ForwardVariant V>
TANDEM_DEVICE core::BlockRanges blocks_of_rows(const ForwardArguments& args, const MaskLengths& lengths,
                                               int row, int count) {
  const int first = args.packing.query(row), past = args.packing.query(row + count);
  const int q_len = lengths.q_len, end = past < q_len ? past : q_len;
  const auto blocks =
      core::block_ranges(mask_of<V>(args), first, end, lengths.mask_q_len, lengths.k_len, V.block_n);
  const bool none =
      V.decisions.loops_apart && first >= end;  // some of the tile's rows may be behind the last query
  return none ? core::BlockRanges{0, 0, 0, 0} : blocks;
}

/// What these rows of the block's tile do in `round`, by the schedule, if anything. No branches: it may stand
/// among other code.
template <ForwardVariant V>
TANDEM_DEVICE Work work_of_round(const ForwardArguments& args, TileRows rows, int round) {
  const auto [tile, lengths] = tile_at<V>(args, position_of_round<V>(args.schedule, round));
  const int first_row = tile.m_block * V.block_m;
  const auto own = blocks_of_rows<V>(args, lengths, first_row + rows.first, rows.count);
  core::BlocksAside aside{0, 0};
  if (rows.count < V.block_m) {
    aside = core::aside(blocks_of_rows<V>(args, lengths, first_row, V.block_m), own, V.decisions.direction);
    if (!V.decisions.edge_after) aside.after = 0;
  }
  return {tile, tile.exists() ? first_row : Work::none, core::loop_over(own, V.decisions.direction), aside};
}

/// What these rows of the block's tile do in `round`, or in the first later one in which there is a tile:
/// `round` is moved there.
///
/// The list of variable lengths has no gaps, and the schedule no positions there. Without the loop, though,
/// ptxas takes its kernels' lanes for divergent, and keeps the pipelines' states in ordinary registers: then
/// each product of the main loop waits for its descriptor (tools/sass_overlap --check).
template <ForwardVariant V>
TANDEM_DEVICE Work find_work(const ForwardArguments& args, TileRows rows, int& round) {
  Work work = work_of_round<V>(args, rows, round);
  while (!work.exists() && position_of_round<V>(args.schedule, round) < args.schedule.positions()) {
    work = work_of_round<V>(args, rows, ++round);
  }
  return work;
}

/// Where the box of the tile's rows from `row` on begins. In maps of packs the heads come before the queries
/// (hw::BoxRows).
TANDEM_DEVICE hw::BoxOrigin box_of_rows(const ForwardArguments& args, const TileQueries& queries, int row) {
  const int query = queries.q_begin + args.packing.query(row), head = args.packing.head(queries.pack, row);
  if (args.packing.heads() > 1) return {0, head, query, queries.q_batch};
  return {0, query, head, queries.q_batch};
}

}  // namespace tandem::forward
