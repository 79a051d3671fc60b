// All of a forward block's shared memory, as one struct.
#pragma once

#include "forward/variant.h"
#include "tile/gemm.h"
#include "tile/ring.h"
#include "tile/shared_tile.h"

namespace tandem::forward {

template <ForwardVariant V>
struct ForwardShared {
  using QueryTile = tile::SharedTile<tile::warpgroup_rows, V.head_dim>;
  using KeyTile = tile::SharedTile<V.block_n, V.head_dim>;

  QueryTile q[V.consumers()];
  KeyTile k[V.kv_stages];
  KeyTile v[V.kv_stages];
  tile::Ring<1> q_ring[V.consumers()];  ///< each consumer has its own queries, a ring of one slot
  tile::Ring<V.kv_stages> k_ring;
  tile::Ring<V.kv_stages> v_ring;
};

}  // namespace tandem::forward
