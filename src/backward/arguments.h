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
  core::Divisor heads;   ///< key/value heads of all batch entries, one after another: so many at a time
  core::Divisor places;  ///< where lengths vary: parts that it holds; as many at a time
  int parts;             ///< there: of all heads, each of which has a second counter, behind the first ones
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

/// Lists that the kernel ahead of the others makes where lengths vary (list.h).
struct VarlenLists {
  std::int32_t* key_tiles;    ///< of all key/value heads, in the order in which they are taken
  std::int32_t* query_tiles;  ///< of all query heads; nullptr: no kernel takes them
  std::int32_t* seeing;       ///< blocks of rows of statistics, of queries that see a key
  std::int32_t* unseeing;     ///< blocks of queries that see none
  std::int32_t* unseen;       ///< blocks of keys that nobody sees
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
  /// Where lengths vary, those of a tile are in its sequence (work.h), and padded_q_len has all sequences'.
  Extent extent;
  VarlenLists lists;   ///< where lengths vary
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
  VarlenLists lists;            ///< where lengths vary, and the rest too
  core::TensorView dq, dk, dv;  ///< cleared where queries see nothing, or nobody sees keys
  Statistics unseeing;          ///< of such queries; nullptr where they do not matter
  int unseeing_blocks;          ///< blocks of the grid for these, behind those of rows of statistics
  int kv_heads;
};

/// Where the rows of sequences lie that a tensor has one after another.
struct PackedRows {
  const std::int32_t* cu_seqlens;  ///< nullptr: each sequence has `entry` rows
  int entry;
  int total;  ///< of the tensor
  int most;   ///< of a sequence
};

/// Tiles that are to be listed.
struct ListedTiles {
  int heads;
  int rows;          ///< of a tile
  int cached_rows;   ///< visits of all heads that work at the same time may read so many, for L2 to hold them
  int overlap_from;  ///< sections overlap (list.h) where all heads and sequences have so many tiles
  int long_from;     ///< from so many tiles of a head on each of two sections may read as much
  int fewest_heads;  ///< of a section, whatever L2 holds, where sections overlap
};

/// Of the kernel that makes the lists.
struct ListArguments {
  VarlenLists lists;
  int sequences;
  PackedRows q, k;
  const std::int32_t* seqused_k;  ///< nullptr: all keys are in use
  core::BasicMask<std::int32_t> mask;
  ListedTiles key_tiles, query_tiles;
  int seeing_blocks;  ///< that the list has, some for nobody
  int q_heads;
  int visit_rows, parts_of_visit;  ///< of a block of queries of a head that a tile of keys visits
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
