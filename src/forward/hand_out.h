// The tile scheduler's thread of a block, where lengths vary (tile_queue.h).
#pragma once

#include "forward/listed_tile.h"
#include "forward/shared_storage.h"
#include "forward/work.h"

namespace tandem::forward {

/// Brings a tile's queries into L2, so that their load finds them there once the tile before has left theirs.
template <ForwardVariant V>
TANDEM_DEVICE void prefetch_queries(const ForwardArguments& args, const ListedTile& tile) {
  if (args.narrow_rows) return;
  const TileQueries queries{tile.pack, tile.q_begin, tile.q_batch, tile.o_batch};
  for (int c = 0; c < V.query_tiles(); ++c)
    tile::prefetch_tile<typename ForwardShared<V>::QueryTile>(
        args.q_panels<false>(),
        box_of_rows(args, queries, tile.m_block * V.block_m + c * tile::warpgroup_rows));
}

/// All tiles of the block.
template <ForwardVariant V>
TANDEM_DEVICE void hand_out_tiles(const ForwardArguments& args, TileQueue& queue) {
  auto* header = reinterpret_cast<std::uint32_t*>(args.varlen.tile_list);
  const std::uint32_t tiles = hw::load_global(header), begin_at_once = hw::load_global(header + 1);
  const auto next = [&] { return begin_at_once + hw::take_number(header + 2); };
  std::uint32_t place = hw::block_index() < begin_at_once ? hw::block_index() : next();
  int round = 0;
  for (; place < tiles; ++round, place = next()) {
    const ListedTile tile = load_listed(args.varlen.tile_list, static_cast<int>(place));
    queue.tell(round, tile);
    prefetch_queries<V>(args, tile);
    hw::barrier_wait(queue.wanted, static_cast<std::uint32_t>(round) % 2u);
  }
  ListedTile none{};
  none.m_block = core::Tile::none;
  queue.tell(round, none);
}

}  // namespace tandem::forward
