// All of a forward block's shared memory, as one struct.
#pragma once

#include <cstddef>
#include <type_traits>

#include "forward/arguments.h"
#include "forward/eight_bit.h"
#include "forward/tile_queue.h"
#include "forward/variant.h"
#include "tile/gemm.h"
#include "tile/pipeline.h"
#include "tile/shared_tile.h"

namespace tandem::forward {

/// What the products read.
template <ForwardVariant V>
struct OperandTiles {
  using QueryTile = tile::SharedTile<tile::warpgroup_rows, V.words(V.head_dim)>;
  using KeyTile = tile::SharedTile<V.block_n, V.words(V.head_dim) / V.block_parts()>;
  using ValueRowsTile = tile::SharedTile<V.block_n / V.block_parts(), V.words(V.value_dim)>;
  using ValueTile =
      std::conditional_t<V.is_8_bit(), tile::SharedTile<V.value_dim + V.rows_of_ones(), V.words(V.block_n)>,
                         ValueRowsTile>;

  QueryTile q[V.query_tiles()];
  KeyTile k[V.kv_stages];
  ValueTile v[V.kv_stages];
};

/// V's way to its transposition.
template <ForwardVariant V>
struct ValueRows {
  typename OperandTiles<V>::ValueRowsTile v[V.row_stages()];
  tile::Pipeline<V.row_stages()> pipeline;
};
struct NoValueRows {};
template <ForwardVariant V>
using RowsOfValues = std::conditional_t<V.transposes(), ValueRows<V>, NoValueRows>;

/// What values' first terms have left, where they have a second one.
template <ForwardVariant V>
struct SecondTerms {
  typename OperandTiles<V>::ValueTile v[V.kv_stages];
};
struct NoSecondTerms {};
template <ForwardVariant V>
using SecondTermsOfValues = std::conditional_t<V.value_terms == 2, SecondTerms<V>, NoSecondTerms>;

/// The output's way to global memory: a tile for each consumer warp.
template <ForwardVariant V>
struct OutputTiles {
  tile::SharedTile<output_rows, V.value_dim> warp[4 * V.consumers()];
};
struct NoOutputTiles {};

/// What comes with the keys of 8-bit operands.
template <ForwardVariant V>
struct ScalesOfBlocks {
  BlockScales of_block[V.kv_stages];
};
struct NoScalesOfBlocks {};

/// Blocks of V that reach beyond a sequence's last key land here first (tail.h).
template <ForwardVariant V>
struct TailBarriers {
  hw::Barrier landed[V.kv_stages];
};
struct NoTailBarriers {};

struct NoTileQueue {};

/// What two consumers of the same rows tell one another.
template <ForwardVariant V>
struct SharedRows {
  tile::SharedTile<tile::warpgroup_rows, V.block_n> p;
  float maximum[2][tile::warpgroup_rows];  ///< each consumer's, of a block's scores and all before
  float sum[2][2][hw::warpgroup_size];     ///< each consumer's, of the rows of each of its threads
};
struct NoSharedRows {};

template <ForwardVariant V>
struct ForwardShared : OperandTiles<V> {
  [[no_unique_address]] std::conditional_t<V.shares_rows(), SharedRows<V>, NoSharedRows> both;
  [[no_unique_address]] RowsOfValues<V> rows;
  [[no_unique_address]] SecondTermsOfValues<V> second;
  std::conditional_t<V.decisions.stages_output, OutputTiles<V>, NoOutputTiles> o;
  tile::Pipeline<1> q_pipeline[V.query_tiles()];  ///< each tile of queries has its own, of one stage
  tile::Pipeline<V.kv_stages> k_pipeline;
  tile::Pipeline<V.kv_stages> v_pipeline;
  [[no_unique_address]] std::conditional_t<V.is_8_bit(), ScalesOfBlocks<V>, NoScalesOfBlocks> scales;
  std::conditional_t<V.lengths == Lengths::varlen, TailBarriers<V>, NoTailBarriers> tail;
  [[no_unique_address]] std::conditional_t<V.lengths == Lengths::varlen, TileQueue, NoTileQueue> queue;
};

}  // namespace tandem::forward
