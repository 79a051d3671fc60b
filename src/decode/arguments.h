// What a decode kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/hadamard.h"
#include "core/mask.h"
#include "core/rotary.h"
#include "core/stream_k.h"
#include "core/tensor_view.h"
#include "core/tile_scheduler.h"
#include "hw/types.h"

namespace tandem::decode {

/// Keys of a box at most, and of each box of a contiguous cache.
inline constexpr int most_box_rows = 64;

/// Where the keys of a sequence lie. A contiguous cache is one page of any length for each entry.
struct PageView {
  const std::int32_t* table;        ///< nullptr: the page is the entry
  const std::int32_t* batch_index;  ///< nullptr: the entry is the sequence
  std::int64_t table_stride;
  int pages;
  int page_shift;  ///< log2 of keys in a page; contiguous: 31
  int box_shift;   ///< log2 of keys in a TMA box, at most 6
};

/// One partial result: rows x columns of O, unnormalised, then for each row its maximum (as an exponent of
/// 2) and its sum.
struct PartialLayout {
  int query_rows, columns;

  constexpr std::int64_t floats() const { return static_cast<std::int64_t>(query_rows) * (columns + 2); }
  /// As wide as `column` is.
  template <typename Column>
  constexpr Column output(int row, Column column) const {
    return row * columns + column;
  }
  constexpr int statistics(int row) const { return query_rows * columns + 2 * row; }
};

/// How blocks make teams (work.h).
struct Teams {
  core::Divisor team_blocks;  ///< blocks of a team: so many of a sequence's streams are visited side by side
  core::Divisor count;
  int streams_per_block;  ///< streams of a sequence that a team visits one after another
};

/// Queries of sequences that lie behind one another, up to a step's many of each.
struct PackedQueries {
  const std::int32_t* cu_seqlens;  ///< nullptr: they do not
  int rows;                        ///< of q
};

/// Words of a plan: all positions, SplitScheduler::flags (work.h), then for each block of the grid where its
/// share begins (ShareStart).
constexpr int plan_words(int grid) { return 2 + 2 * grid; }

struct DecodeArguments {
  hw::TensorMap k, k_last, v, v_last;  ///< of panels (hw::Panels), boxes of 2^box_shift keys
  core::TensorView q, k_new, v_new, k_cache, v_cache;
  core::TensorView o;           ///< 16-bit, or fp32 parts
  core::TensorView lse;         ///< fp32; data == nullptr: not wanted
  const std::int32_t* lengths;  ///< nullptr: all sequences fill the cache
  const float* sinks;           ///< of each query head; nullptr: none
  PageView pages;
  core::RotaryView rotary;
  PackedQueries packed;  ///< of variants that list queries, without a list
  core::UnitRule units;
  int batch;            ///< where queries are listed, at most
  int blocks;           ///< of the grid
  Teams teams;          ///< with one stream at a time, or all of a sequence
  Teams long_teams;     ///< of a long step
  int long_step;        ///< units of a stream of each sequence, together, from which on a step is long
  int rows;             ///< query rows of a key/value head: group x query tokens
  int value_dim;        ///< of the tensors; kernels of a larger one have zeros beyond
  core::Divisor group;  ///< row r: token r / group, head r % group
  core::Divisor row_tiles;
  core::Divisor streams;      ///< of a sequence: row tiles of all its key/value heads
  core::Divisor known_parts;  ///< of a stream, where known_streams
  bool known_streams;         ///< each block has a part of one stream, which it finds by its number (work.h)
  bool starts_at_key_0;       ///< of known streams: the first part's first block of keys does
  bool narrow_rows;           ///< boxes bring key_box_columns and value_box_columns (hw::Panels), and no more
  bool fixed_splits;          ///< a unit is a split with a partial result of its own
  bool merges_apart;          ///< the combine kernel merges, which comes behind this one
  int overhead;               ///< of a stream besides its keys, in units, where lengths differ
  core::Divisor min_share;    ///< units that are worth a block
  core::Divisor even_share;   ///< the same where all sequences have as many
  bool shares_end_with_streams;  ///< of even shares: whether they are parts of a stream
  hw::CachePolicy policy;        ///< of the cache's bytes in L2
  float scale_log2;              ///< scores (after the cap) times this are exponents of 2
  float score_to_cap;            ///< > 0: scores become tanh(score_to_cap * score)
  const std::int32_t* plan;      ///< nullptr: each block finds its share
  std::uint32_t* counters;       ///< of the grid's blocks; 0 between calls
  float* partials;               ///< PartialLayout
  /// Of an 8-bit cache, fp32; data == nullptr: all 1.
  core::TensorView k_scale, v_scale;
  int head_dim;  ///< of queries and keys: kernels whose values do not lie in the keys go by value_dim
  core::HadamardView hadamard;  ///< of queries and new keys
  core::TensorView qv;          ///< the queries' part for values; data == nullptr: none
  int key_box_columns, value_box_columns;
  const std::int32_t* listed;  ///< of variants that list queries only: core/listed_queries.h
  std::uint32_t listed_key;    ///< of a list that a call's kernels share: no other is taken

  /// As the kernels load them.
  constexpr hw::Panels k_panels() const { return {k, k_last, key_box_columns}; }
  constexpr hw::Panels v_panels() const { return {v, v_last, value_box_columns}; }
};

/// Of the kernel that merges.
struct CombineArguments {
  DecodeArguments step;
  int log2_slices;  ///< of the blocks that merge one stream
};

/// Of the kernel that makes a plan.
struct PlanArguments {
  DecodeArguments step;
  std::int32_t* plan;  ///< plan_words
};

/// Of the kernel that lists what sequences share (prefix_list.h).
struct PrefixListArguments {
  const std::int32_t* lengths;                        ///< nullptr: all sequences fill the cache
  const std::int32_t* batch_index;                    ///< nullptr: the entry is the sequence
  const std::int32_t *cu_sequences, *prefix_lengths;  ///< groups + 1, groups
  core::UnitRule units;
  int batch, groups;
  int tile_queries;  ///< of an entry of a prefix, at most
  int step_blocks;   ///< of the grid that reads the list
  std::int32_t* list;
  std::int32_t* notes;  ///< prefix_notes words, which the kernel's warps write for one another
  float* prefix_lse;    ///< of the parts of prefixes, `rows` numbers
  int rows;
};

/// Words: a PrefixGroup (prefix_list.h) for each group, and how many entries all prefixes have.
inline constexpr int prefix_group_words = 4;
constexpr std::int64_t prefix_notes(std::int64_t groups) { return prefix_group_words * groups + 1; }

/// Of the kernel that clears the counters of a workspace which was not zeroed.
struct ClearArguments {
  std::uint32_t* counters;
  int count;
};

}  // namespace tandem::decode
