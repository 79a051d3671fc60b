// The producer warpgroup (Algorithm 1, lines 2-10).
#pragma once

#include "forward/shared_storage.h"
#include "forward/work.h"

namespace tandem::forward {

/// One thread feeds the rings for all tiles of the block. TMA does the copying; the thread only waits for
/// empty slots.
template <ForwardVariant V>
TANDEM_DEVICE void produce(const ForwardArguments& args, ForwardShared<V>& shared) {
  using QueryTile = typename ForwardShared<V>::QueryTile;
  using KeyTile = typename ForwardShared<V>::KeyTile;
  tile::RingPosition<1> q_at;
  tile::RingPosition<V.kv_stages> at;  // K and V rings move in step here

  for_each_tile<V>(args, [&](const Work& work) {
    const int kv_head = work.tile.head / args.group;
    tile::acquire_slot(shared.q_ring, q_at, QueryTile::bytes);
    tile::load_tile(shared.q, args.q, shared.q_ring.full[0],
                    {0, work.first_query, work.tile.head, work.tile.batch});  // lines 4, 5
    q_at.advance();

    for (int j = work.blocks.begin; j < work.blocks.end; ++j) {  // line 6
      tile::acquire_slot(shared.k_ring, at, KeyTile::bytes);     // line 7
      tile::load_tile(shared.k[at.slot], args.k, shared.k_ring.full[at.slot],
                      {0, j * V.block_n, kv_head, work.tile.batch});  // lines 8, 9
      tile::acquire_slot(shared.v_ring, at, KeyTile::bytes);
      tile::load_tile(shared.v[at.slot], args.v, shared.v_ring.full[at.slot],
                      {0, j * V.block_n, kv_head, work.tile.batch});
      at.advance();
    }
  });
}

}  // namespace tandem::forward
