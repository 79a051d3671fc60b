// What a forward kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/rotary.h"
#include "core/shift.h"
#include "core/tensor_view.h"
#include "core/tile_scheduler.h"
#include "forward/packing.h"
#include "hw/types.h"

namespace tandem::forward {

/// Variable lengths (core/varlen.h) as kernels have them.
struct VarlenArguments {
  const std::int32_t* cu_seqlens_q;
  const std::int32_t* cu_seqlens_k;
  const std::int32_t* seqused_k;
  const std::int32_t* page_table;
  std::int64_t page_table_stride;
  int sequences;
  int q_rows;  ///< of q's tensor; of all sequences together where there are cu_seqlens_q
  int k_rows;  ///< the same of k and v; of paged ones, what a row of the page table has room for
  int max_seqlen_q, max_seqlen_k;
  int pages;  ///< of the pool
  int log2_page_size;
  int box_rows;    ///< keys that one box of TMA brings
  int split_keys;  ///< of a part (core/varlen.h); 0: keys are not split
  core::Divisor parts_batch;
  std::int32_t* tile_list;
  int most_tiles;  ///< places in the list
  int packs;       ///< of query heads
  /// A hash of all that the list and its tiles depend on but lengths: kernels take no other list's.
  std::uint32_t list_key;
  /// The grid before is a step's, which runs beside this one (chip_share.h): the list is there from the
  /// start, and only the end waits.
  bool beside_step;
};

/// What only the kernels ahead of the forward know of keys that have entries or pages.
struct CacheArguments {
  const std::int32_t* cu_seqlens_new;
  const std::int32_t* leftpad_k;
  const std::int32_t* batch_index;
  int new_rows;  ///< of k_new's tensor; of all sequences together where there are cu_seqlens_new
  int entries;   ///< of the caches
};

/// Scales of 8-bit elements, in global memory: what an element stands for is its value times its scale.
struct ScaleView {
  const float* data;  ///< nullptr: all 1
  std::int64_t batch_stride, block_stride, head_stride;
  core::Divisor block;  ///< tokens that share one
  core::Divisor heads;  ///< heads that share one
};

/// Rows of the output that one warp holds.
inline constexpr int output_rows = 16;

/// Chunks of positions that a band is cut into (core/mask.h). Without chunks all keys are in the first one.
struct ChunkArguments {
  core::Divisor size = core::Divisor(core::BasicMask<std::int32_t>::unlimited);
  int negative_past = core::BasicMask<std::int32_t>::unlimited;  ///< 0 where there are chunks
};

/// Slopes of scores (core/problem.h), as kernels have them.
struct SlopeArguments {
  const float* data;    ///< of each query head; nullptr: none
  std::int64_t stride;  ///< from sequence to sequence
  float to_score;  ///< what a slope of 1 is in scores as the products leave them, or, of capped ones, as tanh
                   ///< does
};

/// Which blocks of keys are seen (core/block_list.h), as kernels have it. Strides are in rows.
struct BlockListArguments {
  const std::int32_t *counts, *blocks;
  std::int64_t batch_stride, head_stride;
  int slots;
  std::uint32_t past_keys;  ///< blocks of the list that have keys
  core::Divisor q_tiles;    ///< tiles of queries in a block of them
  core::Divisor k_blocks;   ///< the kernel's blocks in a block of the list
};

struct ForwardArguments {
  hw::TensorMap q, k, v;  ///< boxes of 64 columns: 64 rows of a tile, block_n keys
  hw::TensorMap o_boxes;  ///< 64 columns x output_rows; where the variant stages its output
  core::TensorView o;     ///< 16-bit, or fp32 parts
  core::TensorView lse;   ///< fp32; data == nullptr: not wanted
  core::BasicMask<std::int32_t> mask;
  core::TileScheduler schedule;  ///< its heads are packs of query heads
  Packing packing;
  int q_len, k_len;
  int value_dim;                         ///< columns of outputs, at most the variant's
  core::Divisor group;                   ///< packs per key/value head
  float scale_log2;                      ///< scores (after the cap) times this are exponents of 2
  float score_to_cap;                    ///< softcap: scores become tanh(score_to_cap * score)
  VarlenArguments varlen;                ///< of variants for variable lengths only
  ScaleView q_scale, k_scale, v_scale;   ///< of 8-bit operands; a block of keys has one of either
  const float* sinks;                    ///< of each query head; of variants for variable lengths only
  ChunkArguments chunks;                 ///< of bands of variable lengths only
  SlopeArguments slopes;                 ///< the same
  const std::uint32_t* tree;             ///< the same: two words of 32 bits for each row of q; nullptr: none
  BlockListArguments block_list;         ///< of sparse variants only
  core::ShiftView v_shift;               ///< of 8-bit operands; its heads are key/value heads
  core::TensorView q_dot_k_shift;        ///< of 8-bit operands; fp32, as lse; data == nullptr: none
  float scale;                           ///< of scores
  hw::TensorMap q_last, k_last, v_last;  ///< where narrow_rows: of a row's last box (hw::Panels)
  bool narrow_rows;  ///< rows have fewer columns than tiles; boxes bring these, and no more
  int key_box_columns, value_box_columns;

  /// As the kernels load them.
  template <bool narrow>
  constexpr hw::Panels q_panels() const {
    return {q, q_last, narrow ? key_box_columns : hw::Panels::all_columns};
  }
  template <bool narrow>
  constexpr hw::Panels k_panels() const {
    return {k, k_last, narrow ? key_box_columns : hw::Panels::all_columns};
  }
  template <bool narrow>
  constexpr hw::Panels v_panels() const {
    return {v, v_last, narrow ? value_box_columns : hw::Panels::all_columns};
  }
};

/// What is known on the host of a step and a forward that run side by side (chip_share.h). Microseconds are
/// those of one multiprocessor.
struct ChipShare {
  int multiprocessors;    ///< of the chip; 0: nobody runs beside the step
  int team_blocks;        ///< the step takes multiples of these
  int resident;           ///< the forward's blocks of a multiprocessor
  int forward_blocks;     ///< of its grid
  float tile_us, key_us;  ///< of a tile, and for each key that it sees
  float listed_us;        ///< of a listed sequence
  float listed_key_us;    ///< for each of its keys, where all multiprocessors read
  float speed_of_few;     ///< how much faster one reads where few do

  /// Of the forward's blocks those that find room beside so many of the step's.
  constexpr int forward_blocks_beside(int step_blocks) const {
    const int room = (multiprocessors - step_blocks) * resident;
    return room < forward_blocks ? room : forward_blocks;
  }
};

/// Sequences of few queries that others serve: they have no tiles, but are listed for whom they are left to.
struct FewArguments {
  std::int32_t* list;       ///< core/listed_queries.h
  int most_queries;         ///< of those; 0: none are left to others
  std::uint32_t* counters;  ///< of whom they are left to, who wants them 0
  int counter_count;
  int step_blocks;  ///< of their grid
  ChipShare share;
  std::int32_t* lengths;  ///< of a step without a list: keys of each sequence go there; else nullptr
};

/// Of the kernel that lists the tiles of variable lengths.
struct ListArguments {
  ForwardArguments forward;  ///< varlen.tile_list is written
  CacheArguments cache;
  core::Divisor tile_queries;  ///< of a tile
  int grid;                    ///< of the forward
  int tile_blocks;             ///< of the grid; those behind them list sequences of few queries
  FewArguments few;
};

/// A tensor's tokens, and the warps that each of them takes (append.h).
struct TokenRows {
  core::Divisor length;  ///< tokens of an entry
  core::Divisor pieces;  ///< of a token
  int warps;             ///< of all tokens
};

/// Of the kernel that appends new keys and values, and rotates them and the queries.
struct AppendArguments {
  VarlenArguments varlen;
  CacheArguments cache;
  core::TensorView q, rotated_q;  ///< data == nullptr: queries stay
  core::TensorView k_new, v_new, k_cache, v_cache;
  core::RotaryView rotary;
  TokenRows queries, added;
  int q_heads, kv_heads;
  core::Divisor row_chunks;  ///< of 16 bytes, of a row of the head dim
  FewArguments few;          ///< listed besides, where no kernel lists tiles
};

}  // namespace tandem::forward
