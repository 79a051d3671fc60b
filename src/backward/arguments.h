// What the kernels of the backward pass are told at run time.
#pragma once

#include <cstdint>

#include "backward/key_order.h"
#include "backward/statistics.h"
#include "core/mask.h"
#include "core/tensor_view.h"
#include "core/tile_scheduler.h"
#include "hw/types.h"

namespace tandem::backward {

/// The problem without the queries that see no key and the keys that nobody sees, which all are first ones.
struct Extent {
  int q_len, k_len;
  int q_heads, head_dim;  ///< columns that exist, at most the variant's
  int padded_q_len;
  core::BasicMask<std::int32_t> mask;
};

/// Where tiles of keys add their parts of dQ (ring.h).
struct DqRing {
  float* sums;                   ///< parts of as many key/value heads as it holds
  std::uint32_t* visits;         ///< of each part; 0 before the kernel
  std::uint32_t* next_position;  ///< in the order of tiles; 0 before the kernel
  core::Divisor heads;  ///< key/value heads of all batch entries, one after another: so many at a time
};

/// Splits of the groups of query heads (group_splits.h), of all batch entries.
struct GroupSplits {
  core::Divisor count;  ///< of a group
  int heads;            ///< splits of a batch entry
  int key_blocks;       ///< of 64 keys that a head has, padded to tiles
};

/// Where dK or dV goes.
struct GradientOutput {
  core::TensorView to;  ///< 16-bit
  float* kept;          ///< parts of splits; nullptr: groups are not split
};

/// Of the kernels with products.
struct BackwardArguments {
  hw::TensorMap q, dout, k, v;  ///< boxes of 64 columns x the rows of a tile in shared memory
  hw::TensorMap dq_sums;        ///< fp32, boxes of one part: the ring's; where the variant adds them
  hw::TensorMap dq_rows;        ///< dQ in boxes of 64 x 64; there too
  core::TensorView dq;          ///< 16-bit
  GradientOutput dk, dv;
  GroupSplits splits;
  Statistics statistics;
  KeyOrder order;                ///< of tiles of keys
  core::TileScheduler schedule;  ///< of tiles of queries
  DqRing ring;
  core::Divisor group;  ///< query heads per key/value head, or split of one
  Extent extent;
  float scale;         ///< of dQ and dK
  float scale_log2;    ///< scores (after the cap) times this are exponents of 2
  float score_to_cap;  ///< softcap: scores become tanh(score_to_cap * score)
};

/// Of the preprocessing.
struct PrepareArguments {
  core::TensorView o, dout;  ///< 16-bit
  core::TensorView lse;      ///< fp32
  core::TensorView dlse;     ///< fp32; data == nullptr: 0
  Statistics statistics;
  std::uint32_t* counters;  ///< cleared: the ring's
  int counter_count;        ///< 0: nobody adds
  core::Divisor row_blocks, q_heads;
  Extent extent;
};

/// Of the sums over splits.
struct CombineArguments {
  GradientOutput dk, dv;
  GroupSplits splits;
  core::Divisor key_blocks, heads, all_heads;  ///< key/value heads, of one and of all batch entries
  int k_len, head_dim;
  float scale;  ///< of dK
};

/// Of the sinks' gradients: the statistics of all rows, those that see no key apart.
struct SinksArguments {
  Statistics seeing, unseeing;
  int seeing_rows, unseeing_rows;  ///< of a head of a batch entry, padded
  int batch, q_heads;
  const float* sinks;  ///< of each query head
  float* dsinks;
};

/// Of rows that are 0 because nobody sees them.
struct ClearArguments {
  core::TensorView tensor;
  core::Divisor heads, rows;
  int count;  ///< rows of all heads and batch entries
  int head_dim;
};

}  // namespace tandem::backward
