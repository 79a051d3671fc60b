// Shared memory of the kernel of a tile of keys.
#pragma once

#include <type_traits>

#include "backward/sums.h"
#include "backward/taken_tiles.h"
#include "backward/variant.h"
#include "tile/gemm.h"
#include "tile/handover.h"
#include "tile/pipeline.h"
#include "tile/shared_tile.h"

namespace tandem::backward {

/// Statistics of a block of queries, which come with q and dO.
template <int queries>
struct alignas(128) StatisticsStage {
  float value[queries];
  static constexpr int bytes = queries * static_cast<int>(sizeof(float));
};

/// Rows of dQ of a part.
using RoundedPart = tile::SharedTile<part_rows, part_columns>;

/// dS on its way to the product for dQ, and dQ on its way to the sums.
template <BackwardVariant V>
struct DqTiles {
  static constexpr int stages = 2;
  /// Keys are rows, so that a warpgroup stores its dS as it holds it.
  tile::SharedTile<V.block_n, V.block_m> ds[stages];
  /// Each consumer has a part of its own (sums.h). Of the last tile the sums of the tiles before come to its
  /// place, and it becomes dQ, rounded.
  struct alignas(1024) Part {
    float value[part_elements];

    TANDEM_DEVICE RoundedPart& rounded() { return *reinterpret_cast<RoundedPart*>(value); }
  } part[V.consumers];
};

/// A visit to a part on its way from the writer to who counts it.
struct FinishedVisit {
  int counter;
  tile::Handover<1> pipeline;
};

/// Their barriers, apart: tiles are aligned to 1 KiB, and shared memory is full.
template <BackwardVariant V>
struct DqPipelines {
  tile::Handover<DqTiles<V>::stages> ds;
  tile::Handover<1> part[V.consumers];
  hw::Barrier sums[V.consumers];  ///< completes for each part, when the sums have come if it needs them
  FinishedVisit finished[V.consumers];
  TakenTiles taken;
};
struct NoDq {};

template <BackwardVariant V>
struct KeysShared {
  using KeyTile = tile::SharedTile<tile::warpgroup_rows, V.head_dim>;
  using QueryTile = tile::SharedTile<V.block_m, V.head_dim>;
  static constexpr int key_tiles = V.block_n / tile::warpgroup_rows;  // of one consumer each, but in roles

  KeyTile k[key_tiles], v[key_tiles];
  QueryTile q[V.q_stages], dout[V.stages];
  std::conditional_t<V.adds_dq(), DqTiles<V>, NoDq> dq;
  StatisticsStage<V.block_m> lse_log2[V.q_stages];  ///< comes with q
  StatisticsStage<V.block_m> delta[V.stages];       ///< comes with dO
  std::conditional_t<V.adds_dq(), DqPipelines<V>, NoDq> dq_pipelines;
  tile::Pipeline<1> k_pipeline, v_pipeline;  ///< one use a tile
  tile::Pipeline<V.q_stages> q_pipeline;
  tile::Pipeline<V.stages> dout_pipeline;
};

}  // namespace tandem::backward
