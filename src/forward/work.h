// Which tiles a block walks, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/schedule.h"
#include "forward/arguments.h"
#include "forward/decisions.h"
#include "forward/sequence.h"
#include "forward/tile_list.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// Rows of a tile that walk together.
struct TileRows {
  int first, count;
};

/// One tile of queries, and the walk of some of its rows over the key blocks that they meet.
struct Work {
  core::Tile tile;
  int first_row;  ///< the tile's, of its pack's; negative: there is no more work
  core::BlockWalk walk;
  core::BlocksAside aside;  ///< what the tile walks without these rows

  static constexpr int none = -1;
  TANDEM_DEVICE bool exists() const { return first_row >= 0; }
};

/// Bands are dealt there and back always: at d64 the choice (core/schedule.h) costs their kernels registers
/// that they don't have.
template <ForwardVariant V>
TANDEM_DEVICE int position_of_round(const core::Schedule& schedule, int round) {
  const auto block = static_cast<int>(hw::block_index());
  if (V.mask == MaskKind::prefix && V.lengths == Lengths::uniform) return schedule.position(round, block);
  return core::Schedule::there_and_back(round, block, static_cast<int>(hw::grid_size()));
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
TANDEM_DEVICE core::BlockRanges blocks_of_rows(const ForwardArguments& args, const Sequence& sequence,
                                               int row, int count) {
  const int first = args.packing.query(row), past = args.packing.query(row + count);
  const int q_len = sequence.q_len, end = past < q_len ? past : q_len;
  const auto blocks =
      core::block_ranges(mask_of<V>(args), first, end, sequence.mask_q_len, sequence.k_len, V.block_n);
  const bool none = walks_apart<V> && first >= end;  // some of the tile's rows may be behind the last query
  return none ? core::BlockRanges{0, 0, 0, 0} : blocks;
}

/// What these rows of the block's tile do in `round`, by the schedule, if anything. No branches: it may stand
/// among other code.
template <ForwardVariant V>
TANDEM_DEVICE Work work_of_round(const ForwardArguments& args, TileRows rows, int round) {
  const int position = position_of_round<V>(args.schedule, round);
  const core::Tile tile = tile_at<V>(args, position);
  const bool exists = position < positions<V>(args) && tile.exists();
  const int first_row = tile.m_block * V.block_m;
  const Sequence sequence = sequence_of<V>(args, tile.batch);
  const auto own = blocks_of_rows<V>(args, sequence, first_row + rows.first, rows.count);
  core::BlocksAside aside{0, 0};
  if (rows.count < V.block_m) {
    aside = core::aside(blocks_of_rows<V>(args, sequence, first_row, V.block_m), own, direction<V>);
    if (!edge_after<V>) aside.after = 0;
  }
  return {tile, exists ? first_row : Work::none, core::walk(own, direction<V>), aside};
}

/// What these rows of the block's tile do in `round`, or in the first later one in which there is a tile:
/// `round` is moved there.
template <ForwardVariant V>
TANDEM_DEVICE Work find_work(const ForwardArguments& args, TileRows rows, int& round) {
  Work work = work_of_round<V>(args, rows, round);
  while (!work.exists() && position_of_round<V>(args.schedule, round) < positions<V>(args)) {
    work = work_of_round<V>(args, rows, ++round);
  }
  return work;
}

/// Where the box of the tile's rows from `row` on begins. In maps of packs the heads come before the queries
/// (hw::BoxRows).
template <ForwardVariant V>
TANDEM_DEVICE hw::BoxOrigin box_of_rows(const ForwardArguments& args, const core::Tile& tile, int row) {
  const Sequence sequence = sequence_of<V>(args, tile.batch);
  const int query = sequence.q_begin + args.packing.query(row), head = args.packing.head(tile.head, row);
  if (args.packing.heads() > 1) return {0, head, query, sequence.q_batch};
  return {0, query, head, sequence.q_batch};
}

}  // namespace tandem::forward
