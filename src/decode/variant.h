// Variants: what a decode kernel is specialised on, as a value.
#pragma once

#include "hw/types.h"

namespace tandem::decode {

/// How the products are laid out (Chris Elrod, "U/WGMMA Flash Decoding", 8 May 2025).
enum class Algorithm {
  plain,       ///< S = Q K^T with grouped queries as the 64-row operand, as in the forward
  shared_p,    ///< option 0: S^T = K Q^T, P through shared memory, O^T += V^T P
  register_p,  ///< option 1: S^T = K Q^T, P stays in registers, keys are split across the warps
  eight_bit,   ///< shared_p over a cache of 8 bits, which becomes fp16 on its way to registers
  paired,      ///< plain by two warpgroups, which share a tile's rows, its blocks of keys, or each block
};

/// Of what an 8-bit cache consists.
enum class Element { e4m3, int8 };

/// Which queries a step has.
enum class Queries {
  uniform,  ///< as many of each sequence, each in an entry of its own
  listed,   ///< what a list on the device says (core/listed_queries.h), or cu_seqlens; nothing is appended or
            ///< rotated
  sharing,  ///< the same of prefixes that sequences share, and of what each has behind; results are fp32
            ///< parts
};

/// What a stream (core/stream_k.h) costs a multiprocessor besides its keys, as bytes of keys and values that
/// it could have read meanwhile: 2 us, for queries, the first product, which overlaps with nothing, the
/// output or a partial result, at 33 GB/s, a 132nd of the memory's rate. The number to tune: docs/decode.md.
inline constexpr int stream_overhead_bytes = 64 * 1024;

/// Keys and values of a block's share from which on a step is long (plan.cpp). By measurement:
/// docs/decode.md.
inline constexpr int long_share_bytes = 6 * 1024 * 1024;

/// The template argument of the decode kernel. Structural.
struct DecodeVariant {
  Algorithm algorithm;
  hw::Operand operand;
  int head_dim;
  int query_rows;             ///< of a tile: 64 for plain; 64, 128 for paired; 8, 16, 32, 64 for the others
  int block_n;                ///< keys of a block: 64 or 128
  int stages;                 ///< blocks of keys, and of values, in flight
  int resident = 1;           ///< blocks that a multiprocessor has at a time
  bool token_scales = false;  ///< of an 8-bit cache: each token and head has a scale of its own
  /// Columns of values and outputs. Fewer than the head dim: the values are the keys' first columns, in the
  /// same memory, and have no place of their own (multi-head latent attention).
  int value_dim = head_dim;
  /// Where values lie in the keys: keys have two parts, of which the values, from cache.v, are the first, and
  /// the columns behind them cache.k's; so do queries (a call's qv, and its q).
  bool two_part_keys = false;
  Element element = Element::e4m3;  ///< of an 8-bit cache
  bool hadamard = false;            ///< keys of an 8-bit cache may be kept times a Hadamard matrix
  Queries queries = Queries::uniform;
  /// Rows that shared memory and partial results have room for: a kernel of wide tiles has narrow ones too.
  int room_rows = query_rows;

  constexpr bool paired() const { return algorithm == Algorithm::paired; }
  /// One warpgroup, or two. With them there is one producer warp, and idle ones beside it where registers
  /// move: that takes whole warpgroups.
  constexpr int consumer_threads() const { return (paired() ? 2 : 1) * hw::warpgroup_size; }
  constexpr int threads() const {
    return consumer_threads() + (paired() ? hw::warpgroup_size : hw::warp_size);
  }
  /// setmaxnreg's budgets: together what the launch allots, 168 for each of three warpgroups.
  constexpr int producer_budget() const { return values_in_keys() ? 56 : 72; }
  constexpr int consumer_budget() const { return values_in_keys() ? 224 : 216; }
  /// Whether both warpgroups have all rows of the tile; else each has 64 of its own.
  constexpr bool shares_rows() const { return paired() && query_rows == 64; }
  /// Whether each takes every other block of keys; else all take all blocks.
  constexpr bool splits_keys() const { return shares_rows() && !values_in_keys(); }
  /// That visit a block of keys.
  constexpr int threads_of_block() const { return splits_keys() ? hw::warpgroup_size : consumer_threads(); }
  constexpr bool eight_bit() const { return algorithm == Algorithm::eight_bit; }
  constexpr bool values_in_keys() const { return value_dim < head_dim; }
  /// Whether boxes bring only the columns that rows have, and tiles' other columns are cleared once. 8-bit
  /// elements come in pairs, and latent keys have whole boxes.
  constexpr bool boxes_end_with_rows() const { return !eight_bit() && !values_in_keys(); }
  constexpr bool lists_queries() const { return queries != Queries::uniform; }
  constexpr bool shares_prefixes() const { return queries == Queries::sharing; }
  /// Whether its blocks may each have a part of one stream that they know without a length (work.h).
  constexpr bool knows_streams() const { return !shares_prefixes(); }
  /// Of the products.
  constexpr hw::Operand products() const { return eight_bit() ? hw::Operand::fp16 : operand; }
  /// Of a block's keys and values in the cache.
  constexpr int block_bytes() const {
    return (values_in_keys() ? 1 : 2) * block_n * head_dim * (eight_bit() ? 1 : 2);
  }
  /// Whether each work has the narrowest tile with room for its rows: of listed sequences most have one
  /// query.
  constexpr bool narrows_tiles() const { return queries == Queries::listed && query_rows == 32; }
  /// The same kernel's tile of so many rows.
  constexpr DecodeVariant narrowed(int rows) const {
    DecodeVariant narrow = *this;
    narrow.query_rows = rows;
    return narrow;
  }
  /// Of the narrowest tile with room for so many.
  constexpr int narrowest_rows(std::int64_t rows) const {
    if (!narrows_tiles() || rows > 16) return query_rows;
    return rows <= 8 ? 8 : 16;
  }
  /// Of a partial result.
  constexpr int partial_rows() const { return room_rows; }

  /// Tiles of 64 keys in a block.
  constexpr int subtiles() const { return block_n / 64; }
  /// What a stream costs besides its keys, in blocks of keys.
  constexpr int stream_overhead() const {
    return (stream_overhead_bytes + block_bytes() / 2) / block_bytes();
  }

  /// Whether its consumers have a multiprocessor's registers for themselves.
  constexpr bool is_alone() const { return resident == 1; }
  /// Whether long steps may have teams of their own (work.h): wide tiles have no registers to find out, and
  /// wide heads took up to 4 % longer with them (docs/performance/decode.md, The order of a benchmark).
  constexpr bool has_long_steps() const {
    return room_rows <= 16 && head_dim < 256 && is_alone() && !merges_apart();
  }
  /// Whether a kernel of its own merges the parts of cut streams (combine.h): the last block to arrive would
  /// read those of a large tile for longer than that kernel takes to begin.
  constexpr bool merges_apart() const {
    return (room_rows > 16 || value_dim > 256) && algorithm != Algorithm::plain;
  }
  /// Whether that kernel is the only way, so that there are no fixed splits.
  constexpr bool never_merges() const { return paired(); }
  constexpr bool has_fixed_splits() const { return !never_merges(); }

  /// Of a merge in the kernel: parts, and rounds over a tile's chunks, that are in flight together; what
  /// registers allow.
  constexpr int merge_group() const {
    return resident < 3 && query_rows <= (resident == 1 ? 32 : 16) ? 16 : 8;
  }
  /// Whether many parts are merged in groups first. Other kernels have no registers for it.
  constexpr bool merges_in_groups() const {
    const bool has_registers = queries == Queries::uniform || (queries == Queries::listed && head_dim > 64);
    return algorithm == Algorithm::shared_p && has_registers && is_alone() && !merges_apart();
  }
  /// So many are: of three groups the second arrival takes as long as one block takes for two more.
  constexpr bool merges_in_groups(std::int64_t parts) const {
    return merges_in_groups() && parts > 3 * merge_group();
  }
  constexpr int merge_rounds() const { return query_rows <= 16 && is_alone() ? 2 : 1; }

  friend constexpr bool operator==(const DecodeVariant&, const DecodeVariant&) = default;
};

/// The template argument of the kernel that merges the parts of large tiles' streams.
struct CombineVariant {
  hw::Operand operand;  ///< of the output
  int value_dim, query_rows;
  Queries queries = Queries::uniform;  ///< of the step

  static constexpr int threads() { return hw::warpgroup_size; }
  static constexpr int consumer_threads() { return threads(); }
  /// Blocks that a multiprocessor has at a time, by their registers. Not `resident`, which ptxas would be
  /// told.
  static constexpr int fitting_blocks = 4;
  /// Blocks that can share a tile's chunks of four elements: then each has one for every thread.
  constexpr int most_slices() const { return query_rows * value_dim / 4 / threads(); }
  constexpr int partial_rows() const { return query_rows; }
  static constexpr int merge_group() { return 16; }
  constexpr bool shares_prefixes() const { return queries == Queries::sharing; }
  static constexpr int merge_rounds() { return 1; }

  friend constexpr bool operator==(const CombineVariant&, const CombineVariant&) = default;
};

/// The kernel that makes a plan is one.
struct PlanVariant {
  static constexpr int threads() { return hw::warpgroup_size; }

  friend constexpr bool operator==(const PlanVariant&, const PlanVariant&) = default;
};

/// And the one that lists what sequences share.
struct PrefixListVariant {
  static constexpr int threads() { return 2 * hw::warpgroup_size; }
  static constexpr int warps() { return threads() / hw::warp_size; }

  friend constexpr bool operator==(const PrefixListVariant&, const PrefixListVariant&) = default;
};

/// And so is the one that clears counters, a thread for each.
struct ClearVariant {
  static constexpr int threads() { return 4 * hw::warpgroup_size; }

  friend constexpr bool operator==(const ClearVariant&, const ClearVariant&) = default;
};

}  // namespace tandem::decode
