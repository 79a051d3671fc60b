// Variants: what a decode kernel is specialised on, as a value.
#pragma once

#include "hw/types.h"

namespace tandem::decode {

/// How the products are laid out (seed 002, "U/WGMMA Flash Decoding").
enum class Algorithm {
  plain,       ///< S = Q K^T with grouped queries as the 64-row operand, as in the forward
  shared_p,    ///< option 0: S^T = K Q^T, P through shared memory, O^T += V^T P
  register_p,  ///< option 1: S^T = K Q^T, P stays in registers, keys are split across the warps
};

/// The template argument of the decode kernel. Structural.
struct DecodeVariant {
  Algorithm algorithm;
  hw::Operand operand;
  int head_dim;
  int columns;  ///< query rows of a tile: 64 for plain; 8, 16, 32, 64 for the transposed ones
  int block_n;  ///< keys of a block: 64 or 128
  int stages;   ///< blocks of keys, and of values, in flight
  int blocks_per_sm;

  /// One warpgroup of consumers and one producer warp.
  static constexpr int consumer_threads = hw::warpgroup_size;
  static constexpr int threads = consumer_threads + hw::warp_size;
  /// Tiles of 64 keys in a block.
  constexpr int subtiles() const { return block_n / 64; }

  friend constexpr bool operator==(const DecodeVariant&, const DecodeVariant&) = default;
};

}  // namespace tandem::decode
