// Which tile a block works on, and which blocks of queries or keys that tile visits.
#pragma once

#include "backward/arguments.h"
#include "backward/list.h"
#include "backward/variant.h"
#include "core/mask.h"
#include "hw/hw.h"

namespace tandem::backward {

using core::BlockKind;

/// One tile of keys of a key/value head, or of a split of one (group_splits.h): it visits the blocks of
/// queries that see it, each of them in all heads of the group.
struct KeyWork {
  int tile, first_key, kv_head, batch;  ///< tile: its number among those of its head, or none
  core::BlockRanges blocks;             ///< of queries, the same in each head
  int number;                           ///< of the tile, as the block of the grid takes them
  int first_step, end_step;             ///< of the loop, which counts visits of all tiles
  int first_until;    ///< the tile is the first one that adds to a block, in steps before this
  int last_from;      ///< and the last one, in steps from this on
  Sequence sequence;  ///< where lengths vary

  static constexpr int none = -1;

  /// What the tile's part of a block's dQ is to the sums.
  struct Part {
    bool is_first, is_last;
  };
  TANDEM_DEVICE Part part_of(int step) const { return {step < first_until, step >= last_from}; }
  /// Of a step, and the step behind the visits of a block.
  TANDEM_DEVICE int block_of(int step, const core::Divisor& group) const {
    return blocks.end - 1 - group.divide(step - first_step).quotient;
  }
  TANDEM_DEVICE int step_behind(int block, const core::Divisor& group) const {
    return first_step + (blocks.end - block) * group.value();
  }
};

/// A step of the loop of a tile of keys: its visit to a block of queries in a head.
struct Step {
  int number, head, block;
  bool is_last;  ///< of the tile
};

/// One tile of queries of a head, and the blocks of keys that it visits.
struct QueryWork {
  int first_query, head, batch;
  core::BlockRanges blocks;
  Sequence sequence;  ///< where lengths vary
};

/// The lengths of a tile's sequence.
template <BackwardVariant V>
TANDEM_DEVICE Extent extent_of(const BackwardArguments& args, const Sequence& sequence) {
  Extent extent = args.extent;
  if constexpr (V.is_varlen()) extent.q_len = sequence.q_len, extent.k_len = sequence.k_len;
  return extent;
}

/// Where a box of rows of a tile's sequence begins, or of its batch entry.
template <BackwardVariant V>
TANDEM_DEVICE auto box_at(const core::RowSpan& rows, int batch, int head, int row) {
  if constexpr (V.is_varlen()) {
    return hw::PackedOrigin(0, row, head, rows.length, rows.begin + rows.length);
  } else {
    return hw::BoxOrigin{0, row, head, batch};
  }
}
template <BackwardVariant V, typename Work>
TANDEM_DEVICE auto query_box(const Work& work, int head, int query) {
  return box_at<V>({work.sequence.q_begin, work.sequence.q_len}, work.batch, head, query);
}
template <BackwardVariant V, typename Work>
TANDEM_DEVICE auto key_box(const Work& work, int head, int key) {
  return box_at<V>({work.sequence.k_begin, work.sequence.k_len}, work.batch, head, key);
}

/// The blocks of queries that tile `tile` of keys visits. Later tiles begin and end no earlier.
template <BackwardVariant V>
TANDEM_DEVICE core::BlockRanges blocks_of(const Extent& extent, int tile) {
  const int first = tile * V.block_n, past = first + V.block_n;
  core::BlockRanges blocks =
      core::block_ranges(extent.mask.transposed(), first, past < extent.k_len ? past : extent.k_len,
                         extent.k_len, extent.q_len, V.block_m);
  // Keys behind the last one are hidden like others that the mask hides.
  if (past > extent.k_len) blocks.full_begin = blocks.full_end = blocks.end;
  return blocks;
}

/// A tile of a schedule or of a list, and its sequence, where lengths vary.
struct ScheduledTile {
  core::Tile tile;
  Sequence sequence;

  TANDEM_DEVICE static ScheduledTile of_list(std::int32_t* list, int position) {
    const ListedTile listed = read_tile(list, position);
    return {{listed.tile, listed.head, 0}, listed.sequence};
  }
};
/// The tile of keys, or of queries, at a position of the order, which has it (key_positions,
/// query_positions).
template <BackwardVariant V>
TANDEM_DEVICE ScheduledTile key_tile(const BackwardArguments& args, int position) {
  if constexpr (V.is_varlen()) return ScheduledTile::of_list(args.lists.key_tiles, position);
  return {args.order.tile(position), {}};
}
template <BackwardVariant V>
TANDEM_DEVICE ScheduledTile query_tile(const BackwardArguments& args, int position) {
  if constexpr (V.is_varlen()) return ScheduledTile::of_list(args.lists.query_tiles, position);
  return {args.schedule.tile(position), {}};
}
/// Where the order of tiles of keys, or of queries, ends.
template <BackwardVariant V>
TANDEM_DEVICE int key_positions(const BackwardArguments& args) {
  if constexpr (V.is_varlen()) return list_size(args.lists.key_tiles);
  return args.order.positions();
}
template <BackwardVariant V>
TANDEM_DEVICE int query_positions(const BackwardArguments& args) {
  if constexpr (V.is_varlen()) return list_size(args.lists.query_tiles);
  return args.schedule.positions();
}

/// A tile of keys, which the block of the grid takes as its number `number`, after so many steps.
template <BackwardVariant V>
TANDEM_DEVICE KeyWork key_work(const BackwardArguments& args, const ScheduledTile& scheduled, int number = 0,
                               int steps = 0) {
  const auto& [tile, sequence] = scheduled;
  const Extent extent = extent_of<V>(args, sequence);
  const int rank = tile.m_block;
  KeyWork work{.tile = rank,
               .first_key = rank * V.block_n,
               .kv_head = tile.head,
               .batch = tile.batch,
               .blocks = blocks_of<V>(extent, rank),
               .number = number,
               .first_step = steps};
  if constexpr (V.is_varlen()) work.sequence = sequence;
  work.end_step = work.step_behind(work.blocks.begin, args.group);
  const bool is_last = work.first_key + V.block_n >= extent.k_len;
  work.first_until =
      work.step_behind(rank == 0 ? work.blocks.begin : blocks_of<V>(extent, rank - 1).end, args.group);
  work.last_from =
      work.step_behind(is_last ? work.blocks.end : blocks_of<V>(extent, rank + 1).begin, args.group);
  return work;
}

template <BackwardVariant V>
TANDEM_DEVICE QueryWork query_work(const BackwardArguments& args, const ScheduledTile& scheduled) {
  const auto& [tile, sequence] = scheduled;
  const Extent extent = extent_of<V>(args, sequence);
  const int first = tile.m_block * V.block_m, past = first + V.block_m;
  return {first, tile.head, tile.batch,
          core::block_ranges(extent.mask, first, past < extent.q_len ? past : extent.q_len, extent.q_len,
                             extent.k_len, V.block_n),
          sequence};
}

/// Whether blocks that need the mask have loops apart from those in which every pair counts. Not where such
/// loops cost registers that are not there: with a cap, whose tanh takes longer than the mask anyway, and
/// where dQ is widest.
template <BackwardVariant V>
inline constexpr bool peels_masked_blocks = !V.softcap && !(V.kernel == Kernel::queries && V.head_dim == 256);

/// Calls `visit.operator()<kind>(block)` for each block of keys, in order: masked, full, masked.
template <BackwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_block(const core::BlockRanges& blocks, const Visit& visit) {
  const auto walk = [&]<BlockKind kind>(int begin, int end) {
    for (int block = begin; block < end; ++block) visit.template operator()<kind>(block);
  };
  if constexpr (!peels_masked_blocks<V>) {
    walk.template operator()<BlockKind::masked>(blocks.begin, blocks.end);
  } else {
    walk.template operator()<BlockKind::masked>(blocks.begin, blocks.full_begin);
    walk.template operator()<BlockKind::full>(blocks.full_begin, blocks.full_end);
    walk.template operator()<BlockKind::masked>(blocks.full_end, blocks.end);
  }
}

/// Calls `visit.operator()<kind>(block)`, which is to add one to `step`, for each visit of a tile of keys:
/// the last block of queries first, each in all heads of the group.
///
/// So tiles that begin at the same time come to a block in the order in which they add to it (ring.h), with
/// causal masks and windows too. Not head by head: with a causal mask the next tile has fewer blocks, would
/// come to the next head before this one, and wait for it there.
template <BackwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_visit(const KeyWork& work, const core::Divisor& group, const int& step,
                                  const Visit& visit) {
  const auto walk_down_to = [&]<BlockKind kind>(int block) {
    const int past = work.step_behind(block, group);
    while (step < past) visit.template operator()<kind>(work.block_of(step, group));
  };
  if constexpr (peels_masked_blocks<V>) {
    walk_down_to.template operator()<BlockKind::masked>(work.blocks.full_end);
    walk_down_to.template operator()<BlockKind::full>(work.blocks.full_begin);
  }
  walk_down_to.template operator()<BlockKind::masked>(work.blocks.begin);
}

/// 64 queries each, of the blocks that a sequence's tiles of keys visit.
template <BackwardVariant V>
TANDEM_DEVICE int row_blocks_of(int q_len) {
  return blocks_of_rows(q_len, V.block_m) * (V.block_m / part_rows);
}

/// Of a tile's keys, the first row of the tensor that is its sequence's, and how many are.
template <BackwardVariant V>
TANDEM_DEVICE core::RowSpan rows_of_keys(const BackwardArguments& args, const KeyWork& work) {
  if constexpr (V.is_varlen()) return {work.sequence.k_begin, work.sequence.k_len};
  return {0, args.extent.k_len};
}

/// Where the statistics of a tile's queries of a head from `query` on lie.
template <BackwardVariant V, typename Work>
TANDEM_DEVICE std::int64_t statistics_at(const Extent& extent, const Work& work, int head, int query) {
  const std::int64_t row = V.is_varlen() ? work.sequence.first_row + query : query;
  return (static_cast<std::int64_t>(work.batch) * extent.q_heads + head) * extent.padded_q_len + row;
}

}  // namespace tandem::backward
