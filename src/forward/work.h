// Which tiles a block visits, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/tile_scheduler.h"
#include "core/tree.h"
#include "forward/arguments.h"
#include "forward/block_list.h"
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
  KeyLoop loop;
  core::BlocksAside aside;  ///< what the tile visits without these rows

  static constexpr int none = -1;
  TANDEM_DEVICE bool exists() const { return first_row >= 0; }
};

/// Bands go there and back always: at d64 the choice (core/tile_scheduler.h) costs their kernels
/// registers that they don't have.
template <ForwardVariant V>
TANDEM_DEVICE int position_of_round(const ForwardArguments& args, int round) {
  if constexpr (V.lengths == Lengths::varlen) {
    return hw::shared_memory<ForwardShared<V>>().queue.place_of_round(round);
  } else {
    const auto block = static_cast<int>(hw::block_index());
    if (V.mask == MaskKind::prefix) return args.schedule.position(round, block);
    return core::TileScheduler::there_and_back(round, block, static_cast<int>(hw::grid_size()));
  }
}

/// A band and its chunks.
struct ChunkedBand {
  const core::BasicMask<std::int32_t>& band;
  const ChunkArguments& chunks;

  TANDEM_DEVICE core::BasicKeyRange<std::int32_t> visible_keys(std::int32_t query, std::int32_t q_len,
                                                               std::int32_t k_len) const {
    const std::int32_t position = query + k_len - q_len;
    const std::int32_t first = chunks.size.divide(position < 0 ? 0 : position).quotient * chunks.size.value();
    return core::keys_of_chunk(band.visible_keys(query, q_len, k_len), position, first, chunks.size.value(),
                               chunks.negative_past);
  }
};

/// The mask as the kernel knows it.
template <ForwardVariant V>
TANDEM_DEVICE auto mask_of(const ForwardArguments& args) {
  if constexpr (V.knows_chunks()) {
    return ChunkedBand{args.mask, args.chunks};
  } else if constexpr (V.mask == MaskKind::band) {
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
  auto blocks =
      core::block_ranges(mask_of<V>(args), first, end, lengths.mask_q_len, lengths.k_len, V.block_n);
  if constexpr (V.knows_trees()) {
    // Of a tree's keys each query sees some.
    const int before_tree = (lengths.k_len - lengths.mask_q_len) / V.block_n;
    if (args.tree != nullptr && lengths.q_len <= core::most_tree_queries && blocks.full_end > before_tree)
      blocks.full_end = before_tree > blocks.full_begin ? before_tree : blocks.full_begin;
  }
  const bool none =
      V.decisions.loops_apart && first >= end;  // some of the tile's rows may be behind the last query
  return none ? core::BlockRanges{0, 0, 0, 0} : blocks;
}

/// What these rows of the block's tile do in `round`, by the schedule, if anything. No branches: it may stand
/// among other code.
template <ForwardVariant V>
TANDEM_DEVICE Work work_of_round(const ForwardArguments& args, TileRows rows, int round) {
  const auto [tile, lengths] = tile_at<V>(args, position_of_round<V>(args, round));
  const int first_row = tile.m_block * V.block_m;
  auto own = blocks_of_rows<V>(args, lengths, first_row + rows.first, rows.count);
  core::BlocksAside aside{0, 0};
  if (rows.count < V.block_m) {
    aside = core::aside(blocks_of_rows<V>(args, lengths, first_row, V.block_m), own, V.decisions.direction);
    if (!V.decisions.edge_after) aside.after = 0;
  }
  const std::int32_t* listed = nullptr;
  if constexpr (V.block_sparse) {
    const TileList list = TileList::of<V>(args, tile);
    own = list.places_of(args.block_list, own);
    listed = list.blocks;
  }
  const KeyLoop loop{core::loop_over(own, V.decisions.direction), listed};
  return {tile, tile.exists() ? first_row : Work::none, loop, aside};
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
  while (!work.exists() && position_of_round<V>(args, round) < args.schedule.positions()) {
    work = work_of_round<V>(args, rows, ++round);
  }
  return work;
}

/// Where lengths vary: calls visit(work, keys of the sequence) for all rows of each tile of the block.
template <ForwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_tile(const ForwardArguments& args, Visit visit) {
  constexpr TileRows all_rows{0, V.block_m};
  int round = 0;
  for (Work work = find_work<V>(args, all_rows, round); work.exists();
       work = find_work<V>(args, all_rows, ++round)) {
    visit(work, lengths_of<V>(args, work.tile).k_len);
  }
}

/// Where a kernel may wait for the grids before it.
enum class Moment { start, first_work, end };

/// Waits for them where that is `now`: before anything that they may have written is read. Fixed lengths are
/// arguments: so a role's first work is found while these grids end. Beside a decoding step only the end
/// waits, in one block, so that the step has ended by it.
template <ForwardVariant V>
TANDEM_DEVICE void wait_for_grids_before(const ForwardArguments& args, Moment now) {
  const bool beside = V.lengths == Lengths::varlen && args.varlen.beside_step;
  const Moment own = V.finds_work_early() ? Moment::first_work : beside ? Moment::end : Moment::start;
  if (now == own && (now != Moment::end || hw::block_index() == 0)) hw::wait_for_prior_grid();
}

/// A role's first, behind which it may read what the grids before have written.
template <ForwardVariant V>
TANDEM_DEVICE Work find_first_work(const ForwardArguments& args, TileRows rows, int& round) {
  const Work work = find_work<V>(args, rows, round);
  wait_for_grids_before<V>(args, Moment::first_work);
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
