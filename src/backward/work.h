// Which tile a block works on, and which blocks of queries or keys that tile visits.
#pragma once

#include "backward/arguments.h"
#include "backward/variant.h"
#include "core/mask.h"
#include "hw/hw.h"

namespace tandem::backward {

/// Blocks in which every pair counts, and blocks that need the mask: the two kinds of a peeled loop.
enum class BlockKind { full, masked };

/// One tile of keys of a key/value head: it visits the blocks of queries that see it, of all heads of the
/// group, one after another.
struct KeyWork {
  int first_key, kv_head, batch;
  core::BlockRanges blocks;  ///< of queries, the same in each head

  TANDEM_DEVICE int count() const { return blocks.end - blocks.begin; }
};

/// One tile of queries of a head, and the blocks of keys that it visits.
struct QueryWork {
  int first_query, head, batch;
  core::BlockRanges blocks;
};

/// Schedules have later tiles get longer, of keys it is the earlier ones.
template <BackwardVariant V>
TANDEM_DEVICE KeyWork key_work(const BackwardArguments& args, const core::Tile& tile) {
  const Extent& extent = args.extent;
  const int n_blocks = (extent.k_len + V.block_n - 1) / V.block_n;
  const int first = (n_blocks - 1 - tile.m_block) * V.block_n, past = first + V.block_n;
  core::BlockRanges blocks =
      core::block_ranges(extent.mask.transposed(), first, past < extent.k_len ? past : extent.k_len,
                         extent.k_len, extent.q_len, V.block_m);
  // Keys behind the last one are hidden like others that the mask hides.
  if (past > extent.k_len) blocks.full_begin = blocks.full_end = blocks.end;
  return {first, tile.head, tile.batch, blocks};
}

/// Calls `visit(work)` for each tile of keys that falls to this block of the grid, in order.
template <BackwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_key_work(const BackwardArguments& args, const Visit& visit) {
  const int block = static_cast<int>(hw::block_index());
  const auto visit_position = [&](int position) {
    const core::Tile tile = args.schedule.tile(position);
    if (tile.exists()) visit(key_work<V>(args, tile));
  };
  if constexpr (!V.is_persistent()) {
    visit_position(block);
  } else {
    const int blocks = static_cast<int>(hw::grid_size()), positions = args.schedule.positions();
    for (int round = 0; round * blocks < positions; ++round) {
      const int position = args.schedule.position(round, block);
      if (position < positions) visit_position(position);
    }
  }
}

template <BackwardVariant V>
TANDEM_DEVICE QueryWork query_work(const BackwardArguments& args, const core::Tile& tile) {
  const Extent& extent = args.extent;
  const int first = tile.m_block * V.block_m, past = first + V.block_m;
  return {first, tile.head, tile.batch,
          core::block_ranges(extent.mask, first, past < extent.q_len ? past : extent.q_len, extent.q_len,
                             extent.k_len, V.block_n)};
}

/// Whether blocks that need the mask have loops apart from those in which every pair counts. Not where such
/// loops cost registers that are not there: with a cap, whose tanh takes longer than the mask anyway, and
/// where dQ is widest.
template <BackwardVariant V>
inline constexpr bool peels_masked_blocks = !V.softcap && !(V.kernel == Kernel::queries && V.head_dim == 256);

/// Calls `visit.operator()<kind>(block)` for each block in order: masked, full, masked.
template <BackwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_block(const core::BlockRanges& blocks, const Visit& visit) {
  const auto masked = [&](int begin, int end) {
    for (int block = begin; block < end; ++block) visit.template operator()<BlockKind::masked>(block);
  };
  if constexpr (!peels_masked_blocks<V>) {
    masked(blocks.begin, blocks.end);
  } else {
    masked(blocks.begin, blocks.full_begin);
    for (int block = blocks.full_begin; block < blocks.full_end; ++block)
      visit.template operator()<BlockKind::full>(block);
    masked(blocks.full_end, blocks.end);
  }
}

/// Where the statistics of a head's queries from `query` on lie.
TANDEM_DEVICE std::int64_t statistics_at(const Extent& extent, int batch, int head, int query) {
  return (static_cast<std::int64_t>(batch) * extent.q_heads + head) * extent.padded_q_len + query;
}

}  // namespace tandem::backward
