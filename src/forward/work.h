// Which tiles a block walks, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/schedule.h"
#include "forward/arguments.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// One tile of queries and the key blocks that it meets.
struct Work {
  core::Tile tile;
  int first_query;
  core::BlockRanges blocks;
};

/// Calls `each(work)` for every tile of this block, in the schedule's order.
template <ForwardVariant V, typename Each>
TANDEM_DEVICE void for_each_tile(const ForwardArguments& args, Each&& each) {
  const int grid = static_cast<int>(hw::grid_size()), block = static_cast<int>(hw::block_index());
  const std::int64_t tiles = args.schedule.tiles();
  for (int round = 0; std::int64_t{round} * grid < tiles; ++round) {
    const std::int64_t position = args.schedule.position(round, block, grid);
    if (position >= tiles) continue;
    const core::Tile tile = args.schedule.tile(static_cast<int>(position));
    const int first = tile.m_block * V.block_m;
    const int past = first + V.block_m < args.q_len ? first + V.block_m : args.q_len;
    each(Work{tile, first, core::block_ranges(args.mask, first, past, args.q_len, args.k_len, V.block_n)});
  }
}

}  // namespace tandem::forward
