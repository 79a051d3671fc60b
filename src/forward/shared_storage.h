// All of a forward block's shared memory, as one struct.
#pragma once

#include <cstddef>
#include <type_traits>

#include "forward/arguments.h"
#include "forward/variant.h"
#include "tile/gemm.h"
#include "tile/ring.h"
#include "tile/shared_tile.h"

namespace tandem::forward {

/// What the products read.
template <ForwardVariant V>
struct OperandTiles {
  using QueryTile = tile::SharedTile<tile::warpgroup_rows, V.head_dim>;
  using KeyTile = tile::SharedTile<V.block_n, V.head_dim>;

  QueryTile q[V.consumers()];
  KeyTile k[V.kv_stages];
  KeyTile v[V.kv_stages];
};

/// The output's way to global memory: a tile for each consumer warp.
template <ForwardVariant V>
struct OutputTiles {
  tile::SharedTile<output_rows, V.head_dim> warp[4 * V.consumers()];
};
struct NoOutputTiles {};

/// Blocks of V that reach beyond a sequence's last key land here first (tail.h).
template <ForwardVariant V>
struct TailBarriers {
  hw::Barrier landed[V.kv_stages];
};
struct NoTailBarriers {};

/// What both take, with the rings' barriers.
template <ForwardVariant V>
inline constexpr std::size_t bytes_with_output =
    sizeof(OperandTiles<V>) + sizeof(OutputTiles<V>) +
    2 * sizeof(tile::Ring<V.kv_stages>) + V.consumers() * sizeof(tile::Ring<1>) + tile::atom_bytes;

/// Whether the output is staged in shared memory and stored by TMA, so that the warp goes on at once: where
/// there is room for it, and its panels are full, since TMA reads them whole. Not with three stages, whose
/// WGMMAs ptxas serialises then, whatever the tile (C7511). Not of variable lengths, where the rows behind a
/// sequence's last are another's.
template <ForwardVariant V>
inline constexpr bool stages_output = (V.overlap != Overlap::three_stage) &&
                                      (V.lengths == Lengths::uniform) &&
                                      (V.head_dim % tile::panel_columns == 0) &&
                                      (bytes_with_output<V> <= hw::max_shared_bytes);

template <ForwardVariant V>
struct ForwardShared : OperandTiles<V> {
  std::conditional_t<stages_output<V>, OutputTiles<V>, NoOutputTiles> o;
  tile::Ring<1> q_ring[V.consumers()];  ///< each consumer has its own queries, a ring of one slot
  tile::Ring<V.kv_stages> k_ring;
  tile::Ring<V.kv_stages> v_ring;
  std::conditional_t<V.lengths == Lengths::varlen, TailBarriers<V>, NoTailBarriers> tail;
};

}  // namespace tandem::forward
