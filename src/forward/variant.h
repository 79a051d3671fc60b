// Variants: what a forward kernel is specialised on, as a value.
#pragma once

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
  pingpong,  ///< in turns (turn.h)
};

/// Which masks a kernel knows.
enum class MaskKind {
  prefix,  ///< each query sees all keys before some limit: full attention and causal masks
  band,    ///< any: windows too
};

/// Whose lengths a kernel knows.
enum class Lengths {
  uniform,  ///< all sequences have the tensors' lengths
  varlen,   ///< each has its own, which are read on the device (sequence.h)
};

/// How the products get V.
enum class ValueLayout {
  rows,             ///< a row for each key: 16-bit operands are read down the columns
  rows_transposed,  ///< the same, transposed on its way (transposer.h): 8-bit operands are read along rows
                    ///< only
  columns,          ///< a row for each column of the head, as tandem_quantize writes it
};

/// The template argument of the forward kernel. Structural, so that `ForwardVariant` values are types'
/// arguments.
struct ForwardVariant {
  hw::Operand operand;
  int head_dim;  ///< smaller head dims run padded: TMA fills with zeros, the epilogue stores what exists
  MaskKind mask;
  bool softcap;
  Overlap overlap;
  TurnPolicy turn;
  int block_m;  ///< rows of a tile (packing.h): 64 for each consumer warpgroup
  int block_n;  ///< keys of a block
  int kv_stages;
  Lengths lengths = Lengths::uniform;
  hw::Operand output;  ///< 16-bit; that of 16-bit operands
  ValueLayout values = ValueLayout::rows;

  constexpr bool is_8_bit() const { return !hw::is_16_bit(operand); }
  /// 16-bit words that so many elements of an operand take, as tiles count.
  constexpr int words(int elements) const { return is_8_bit() ? elements / 2 : elements; }
  constexpr bool transposes() const { return values == ValueLayout::rows_transposed; }
  /// Of the ring of rows in front of the transposition.
  constexpr int row_stages() const { return head_dim > 128 ? 1 : 2; }
  constexpr int consumers() const { return block_m / 64; }
  constexpr int threads() const { return (1 + consumers()) * hw::warpgroup_size; }
  /// setmaxnreg's budgets, in units of 8. Together no more than the launch was given, which is 65536 over all
  /// threads, rounded down to units of 8: 168 each of 384. The rest of the register file is nobody's.
  constexpr int producer_registers() const {
    if (transposes() || lengths == Lengths::varlen) return 56;  // which reads lengths and page tables
    return consumers() == 3 ? 32 : 24;
  }
  constexpr int consumer_registers() const {
    if (transposes() || lengths == Lengths::varlen)
      return consumers() == 2 ? 224 : consumers() == 3 ? 152 : 112;
    return consumers() == 2 ? 240 : consumers() == 3 ? 160 : 112;
  }

  /// Whether the output is staged in shared memory and stored by TMA, so that the warp goes on at once: where
  /// there is room for it, and its panels are full, since TMA reads them whole. Not with three stages, whose
  /// WGMMAs ptxas serialises then, whatever the tile (C7511). Not of variable lengths, where the rows behind
  /// a sequence's last are another's.
  constexpr bool stages_output() const {
    constexpr int alignment = 1024, barriers_of_slot = 2 * sizeof(hw::Barrier);
    // Panels of 64 words are whole in shared memory.
    const int row_bytes = (words(head_dim) + 63) / 64 * 128;
    const int value_bytes = is_8_bit() ? head_dim * 128 : block_n * row_bytes;
    const int rows_bytes = transposes() ? row_stages() * block_n * row_bytes : 0;
    const int operand_bytes =
        (block_m + kv_stages * block_n) * row_bytes + kv_stages * value_bytes + rows_bytes;
    const int output_bytes = block_m * ((head_dim + 63) / 64 * 128);
    const int ring_bytes =
        (2 * kv_stages + (transposes() ? row_stages() : 0) + consumers()) * barriers_of_slot;
    return overlap != Overlap::three_stage && lengths == Lengths::uniform && head_dim % 64 == 0 &&
           operand_bytes + output_bytes + ring_bytes + alignment <= hw::max_shared_bytes;
  }

  friend constexpr bool operator==(const ForwardVariant&, const ForwardVariant&) = default;
};

/// The kernel that lists the tiles of variable lengths is one. A thread for each tile.
struct ListVariant {
  static constexpr int threads() { return hw::warpgroup_size; }

  friend constexpr bool operator==(const ListVariant&, const ListVariant&) = default;
};

}  // namespace tandem::forward
