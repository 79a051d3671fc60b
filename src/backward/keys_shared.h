// Shared memory of the kernel of a tile of keys.
#pragma once

#include <type_traits>

#include "backward/sums.h"
#include "backward/variant.h"
#include "tile/gemm.h"
#include "tile/handover.h"
#include "tile/ring.h"
#include "tile/shared_tile.h"

namespace tandem::backward {

/// Statistics of a block of queries, which come with q and dO.
template <int queries>
struct alignas(128) StatisticsSlot {
  float value[queries];
  static constexpr int bytes = queries * static_cast<int>(sizeof(float));
};

/// dS on its way to the product for dQ, and dQ on its way to the sums.
template <BackwardVariant V>
struct DqTiles {
  static constexpr int slots = 2;
  /// Keys are rows, so that a warpgroup stores its dS as it holds it.
  tile::SharedTile<V.block_n, V.block_m> ds[slots];
  /// Each consumer has a part of its own (sums.h).
  struct alignas(128) Part {
    float value[part_elements];
  } part[V.consumers];
  tile::Handover<slots> ds_ring;
  tile::Handover<1> part_ring[V.consumers];
};
struct NoDqTiles {};

template <BackwardVariant V>
struct KeysShared {
  using KeyTile = tile::SharedTile<tile::warpgroup_rows, V.head_dim>;
  using QueryTile = tile::SharedTile<V.block_m, V.head_dim>;
  static constexpr int key_tiles = V.block_n / tile::warpgroup_rows;  // of one consumer each, but in roles

  KeyTile k[key_tiles], v[key_tiles];
  QueryTile q[V.q_stages], dout[V.stages];
  std::conditional_t<V.dq_sums == DqSums::added, DqTiles<V>, NoDqTiles> dq;
  StatisticsSlot<V.block_m> lse_log2[V.q_stages];  ///< comes with q
  StatisticsSlot<V.block_m> delta[V.stages];       ///< comes with dO
  tile::Ring<1> k_ring, v_ring;                    ///< of one use: a tile has one block of keys
  tile::Ring<V.q_stages> q_ring;
  tile::Ring<V.stages> dout_ring;
};

}  // namespace tandem::backward
