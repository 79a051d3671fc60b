// Variants: what a forward kernel is specialised on, as a value.
#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/varlen.h"
#include "hw/types.h"

namespace tandem::forward {

/// How the matrix products and the softmax of one warpgroup overlap.
enum class Overlap {
  serial,       ///< Algorithm 1: each product is waited for at once
  two_stage,    ///< Algorithm 2: softmax of a block while P V of the block before runs
  three_stage,  ///< Algorithm 4: and while Q K^T of the block after runs
};

/// How consumer warpgroups share the tensor cores.
enum class TurnPolicy {
  free,      ///< as the hardware arbitrates
  pingpong,  ///< in turns (pingpong.h)
};

/// Which masks a kernel knows.
enum class MaskKind {
  prefix,  ///< each query sees all keys before some limit: full attention and causal masks
  band,    ///< any: windows too
};

using core::Lengths;

/// Scales of a block of keys of 8-bit operands. The producer brings them with its keys: their addresses take
/// some 90 instructions, which a consumer would issue ahead of each block's product.
struct BlockScales {
  float keys, values;
};

/// How the products get V.
enum class ValueLayout {
  rows,             ///< a row for each key: 16-bit operands are read down the columns
  rows_transposed,  ///< the same, transposed on its way (transposer.h): 8-bit operands are read along rows
                    ///< only
  columns,          ///< a row for each column of the head, as tandem_quantize writes it
};

/// What follows from the rest of a variant by measurement, rather than from the algorithm (decisions.h).
/// Fields, so that they can be printed (tandem sim --variants) and tried otherwise (tools/tile_search
/// --decide).
struct Decisions {
  /// Each consumer visits only the blocks that its own rows see, and skips the others of the tile.
  /// Band masks leave no registers for it.
  bool loops_apart;
  /// Last key first, a causal mask's diagonal comes before the loop over full blocks, where it overlaps with
  /// nothing anyway. Wide heads lose more by it: tiles that run at the same time begin at different keys
  /// then, and fetch more at once (docs/performance/archive.md).
  core::Direction direction;
  /// Where a loop can meet the mask's edges: at a prefix's end only.
  bool edge_before, edge_after;
  /// Row maxima by VIMNMX3, on the bits of floats. Where references follow every maximum, the float maxima of
  /// one row hide beside the other row's exponentials only where there are many of both.
  bool maxima_as_integers;
  /// Some of a block's exponentials come ahead of the wait for P V.
  bool begins_early;
  /// What measures better where registers are scarcest, by what ptxas makes of it
  /// (docs/performance/ptxas.md): queries go back after the loop; and tiles do not pass into one another.
  bool queries_kept_longer, tiles_stand_apart;
  /// The output is staged in shared memory and stored by TMA, so that the warp goes on at once.
  bool stages_output;

  friend constexpr bool operator==(const Decisions&, const Decisions&) = default;
};

/// The template argument of the forward kernel. Structural, so that `ForwardVariant` values are types'
/// arguments.
struct ForwardVariant {
  hw::Operand operand;  ///< of queries and keys; 8-bit values are e4m3 beside either
  int head_dim;  ///< smaller head dims run padded: TMA fills with zeros, the epilogue stores what exists
  MaskKind mask;
  bool softcap;
  Overlap overlap;
  TurnPolicy turn;
  int block_m;    ///< rows of a tile (packing.h): 64 for each consumer warpgroup, or for two (shares_rows)
  int block_n;    ///< keys of a block
  int kv_stages;  ///< of blocks, or of their parts
  Lengths lengths = Lengths::uniform;
  hw::Operand output;  ///< 16-bit; that of 16-bit operands
  ValueLayout values = ValueLayout::rows;
  int value_dim = head_dim;   ///< columns of values and outputs; fewer run padded, as head dims do
  bool block_sparse = false;  ///< visits only the key blocks that are listed for a tile (block_list.h)
  bool fp16_scores =
      false;            ///< 8-bit scores come in fp16 (tile/fp16_softmax.h), whose range they have to keep
  int value_terms = 1;  ///< e4m3 numbers whose sum a value is; two only where values lie in columns
  Decisions decisions = {};

  /// Whether its mask may have chunks. The widest heads leave no registers for them.
  constexpr bool knows_chunks() const {
    return mask == MaskKind::band && lengths == Lengths::varlen && head_dim < 256;
  }
  /// Whether its scores may fall with distance (score_bias.h). At head dim 128 ptxas would issue the softmax
  /// behind P V (tools/sass_overlap) if the kernel knew trees as well: wider ones serve there.
  constexpr bool knows_slopes() const {
    return mask == MaskKind::band && lengths == Lengths::varlen && head_dim != 128;
  }
  /// Whether its queries may be trees (tree_mask.h). Those of the widest heads with a cap would spill.
  constexpr bool knows_trees() const { return knows_chunks(); }
  /// Whether rows may have fewer columns than tiles, and boxes end with them. Stages whose columns are now
  /// these, now those of a key have none that stay empty, and bytes come in pairs.
  constexpr bool boxes_end_with_rows() const { return !is_8_bit() && block_parts() == 1; }
  constexpr bool has_narrow_values() const { return value_dim < head_dim; }
  /// Whether it computes tensors of such head dims. Kernels of narrow values are for keys that are wider than
  /// these.
  constexpr bool knows_columns(std::int64_t of_keys, std::int64_t of_values) const {
    return head_dim >= of_keys && value_dim >= of_values && (!has_narrow_values() || of_keys > value_dim);
  }
  constexpr bool is_8_bit() const { return !hw::is_16_bit(operand); }
  /// Whether its softmax's references stay (tile/lazy_softmax.h). Serial and three-stage kernels are as the
  /// paper prints them, and 8-bit blocks have references of their own.
  constexpr bool references_stay() const { return overlap == Overlap::two_stage && !is_8_bit(); }
  /// 16-bit words that so many elements of an operand take, as tiles count.
  constexpr int words(int elements) const { return is_8_bit() ? elements / 2 : elements; }
  /// Whether probabilities are made as codes (tile/block_softmax.h), and summed by rows of ones under V^T.
  /// Not of the widest heads that are capped, for which ptxas finds no registers, or that have two terms,
  /// beside which shared memory has no room for ones.
  constexpr bool codes() const {
    return values == ValueLayout::columns && (head_dim <= 128 || (!softcap && value_terms == 1));
  }
  constexpr int rows_of_ones() const { return codes() ? 8 : 0; }
  /// Whether scores are sums of integers, which come as floats above tile::base_of_sums.
  constexpr bool integer_scores() const { return operand == hw::Operand::int8; }
  /// Whether o and lse get what shifts of 8-bit values and keys have taken off. Of wide heads ptxas
  /// serialises the products then (C7511).
  constexpr bool adds_shifts() const { return is_8_bit() && head_dim <= 128; }
  /// Whether a role finds its first tile by arguments alone, so that it need not wait for other grids.
  constexpr bool finds_work_early() const { return lengths == Lengths::uniform && !block_sparse; }
  constexpr bool transposes() const { return values == ValueLayout::rows_transposed; }
  /// Of the pipeline of rows in front of the transposition.
  constexpr int row_stages() const { return value_dim > 128 ? 1 : 2; }
  /// Tiles of queries in shared memory, of 64 rows each.
  constexpr int query_tiles() const { return block_m / 64; }
  /// Whether two consumers have the same rows, since the output of one would not hold all columns
  /// (wide_consumer.h).
  constexpr bool shares_rows() const { return head_dim > 256; }
  constexpr int consumers() const { return shares_rows() ? 2 : query_tiles(); }
  /// Parts that a block of keys or values comes in, each of which is a stage: of keys some columns, of values
  /// some rows. A stage of whole blocks would be loaded only while its product does not run.
  constexpr int block_parts() const { return shares_rows() ? 4 : 1; }
  constexpr int threads() const { return (1 + consumers()) * hw::warpgroup_size; }
  /// Blocks that a multiprocessor has at a time: with one consumer each, two.
  constexpr int resident() const { return consumers() == 1 ? 2 : 1; }
  /// Columns of the output that one instruction of P V computes. ptxas wants as many registers as its sums
  /// take where the launch has them: 128 a thread where two blocks are resident, and the widest sums have
  /// all.
  constexpr int instruction_columns() const { return resident() == 2 && value_dim > 192 ? 128 : value_dim; }
  /// Shared memory of a block. The hardware keeps 1 KB of each for itself.
  constexpr int shared_limit() const {
    constexpr int kept = 1024;
    return resident() == 1 ? hw::max_shared_bytes : (hw::max_shared_bytes + kept) / resident() - kept;
  }
  /// setmaxnreg's budgets, in units of 8. Together no more than the launch was given, which is 65536 over all
  /// threads, rounded down to units of 8: 168 each of 384. The rest of the register file is nobody's.
  constexpr int producer_registers() const {
    if (transposes()) return 56;
    return consumers() == 3 ? 32 : 24;
  }
  constexpr int consumer_registers() const {
    if (transposes()) return consumers() == 2 ? 224 : consumers() == 3 ? 152 : 112;
    return consumers() == 1 ? 232 : consumers() == 2 ? 240 : consumers() == 3 ? 160 : 112;
  }

  /// Whether its output can be staged: where there is room for it, and its panels are full, since TMA reads
  /// them whole. Not with three stages, whose WGMMAs ptxas serialises then, whatever the tile (C7511).
  constexpr bool can_stage_output() const {
    constexpr int alignment = 1024, barriers_of_stage = 2 * sizeof(hw::Barrier);
    // Panels of 64 words are whole in shared memory.
    const int row_bytes = (words(head_dim) + 63) / 64 * 128;
    const int value_row_bytes = (words(value_dim) + 63) / 64 * 128;
    const int value_bytes =
        is_8_bit() ? value_terms * (value_dim + rows_of_ones()) * 128 : block_n * value_row_bytes;
    const int rows_bytes = transposes() ? row_stages() * block_n * value_row_bytes : 0;
    const int operand_bytes =
        block_m * row_bytes + kv_stages * (block_n * row_bytes + value_bytes) / block_parts() + rows_bytes;
    const int output_bytes = block_m * ((value_dim + 63) / 64 * 128);
    const int tail_bytes = lengths == Lengths::varlen ? kv_stages * sizeof(hw::Barrier) : 0;
    const int scale_bytes = is_8_bit() ? kv_stages * sizeof(BlockScales) : 0;
    const int pipeline_bytes =
        tail_bytes + scale_bytes +
        (2 * kv_stages + (transposes() ? row_stages() : 0) + consumers()) * barriers_of_stage;
    return overlap != Overlap::three_stage && value_dim % 64 == 0 &&
           operand_bytes + output_bytes + pipeline_bytes + alignment <= shared_limit();
  }

  friend constexpr bool operator==(const ForwardVariant&, const ForwardVariant&) = default;
};

/// The kernel that lists the tiles of variable lengths is one. A warp has a tile of one head, and the same
/// ones of as many heads as make a group.
struct ListVariant {
  static constexpr int threads() { return 2 * hw::warpgroup_size; }
  static constexpr int warps() { return threads() / static_cast<int>(hw::warp_size); }
  static constexpr int packs() { return 8; }
  static constexpr int groups_of(int packs_of_call) { return (packs_of_call + packs() - 1) / packs(); }

  friend constexpr bool operator==(const ListVariant&, const ListVariant&) = default;
};

/// The kernels that append. A warp for each piece of a token.
struct AppendVariant {
  hw::Operand operand;

  static constexpr int threads() { return 2 * hw::warpgroup_size; }
  static constexpr int warps() { return threads() / static_cast<int>(hw::warp_size); }
  static constexpr int lane_chunks = 4;  ///< of 16 bytes, that a lane takes of a piece
  static constexpr int piece_chunks() { return lane_chunks * static_cast<int>(hw::warp_size); }

  friend constexpr bool operator==(const AppendVariant&, const AppendVariant&) = default;
};

}  // namespace tandem::forward
