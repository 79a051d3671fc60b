// All of a decode block's shared memory, as one struct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "decode/variant.h"
#include "tile/pipeline.h"
#include "tile/shared_tile.h"

namespace tandem::decode {

inline constexpr int warps = 4;  ///< of a consumer warpgroup

/// What the warps tell one another about their columns of S^T.
template <int columns>
struct ColumnExchange {
  float maxima[warps][columns];
  float sums[warps][columns], exact_sums[warps][columns];
};

/// What only one algorithm needs.
template <DecodeVariant V, Algorithm algorithm>
struct AlgorithmShared {};

template <DecodeVariant V>
struct AlgorithmShared<V, Algorithm::shared_p> {
  tile::SharedTile<V.query_rows, 64> p[V.subtiles()];  ///< P^T, a row for each query row
  ColumnExchange<V.query_rows> exchange;
};

template <DecodeVariant V>
struct AlgorithmShared<V, Algorithm::register_p> {
  ColumnExchange<V.query_rows> exchange;
  /// A quarter of O^T for each warp, in the order of the fragments.
  float quarter[warps][V.head_dim * V.query_rows / 128][hw::warp_size];
};

/// The scales of a block's tokens.
template <int tokens>
struct TokenScales {
  float k[tokens], v[tokens];
  float largest[warps];  ///< v's, of a warp's tokens
};
struct NoTokenScales {};

template <DecodeVariant V>
struct AlgorithmShared<V, Algorithm::eight_bit> {
  tile::SharedTile<V.query_rows, 64> p[V.subtiles()];
  ColumnExchange<V.query_rows> exchange;
  float query_scale[V.query_rows];  ///< of the queries in shared memory
  std::conditional_t<V.token_scales, TokenScales<V.block_n>, NoTokenScales> tokens;
};

/// What two warpgroups that split the keys tell one another: half the columns of their outputs, which the
/// other one finishes, and rows' references and sums.
template <DecodeVariant V>
struct WarpgroupExchange {
  float output[2][V.head_dim / 4][hw::warpgroup_size];
  float reference[2][V.query_rows], sum[2][V.query_rows];
};
struct NoWarpgroupExchange {};

/// What two warpgroups tell one another that each have half the keys of a block.
template <DecodeVariant V>
struct HalvesExchange {
  tile::SharedTile<V.query_rows, V.block_n> p;
  float maxima[2][V.query_rows], sums[2][V.query_rows];
};

template <DecodeVariant V>
struct AlgorithmShared<V, Algorithm::paired> {
  std::conditional_t<V.splits_keys(), WarpgroupExchange<V>,
                     std::conditional_t<V.shares_rows(), HalvesExchange<V>, NoWarpgroupExchange>>
      exchange;
};

/// Blocks of values, where they have a place of their own.
template <typename KeyBlock, DecodeVariant V>
struct ValueBlocks {
  KeyBlock block[V.stages];
};
template <typename KeyBlock, DecodeVariant V>
requires(V.values_in_keys()) struct ValueBlocks<KeyBlock, V> {
};

/// Of a tile's own memory.
template <DecodeVariant V>
inline constexpr std::size_t tile_bytes = sizeof(tile::SharedTile<V.query_rows, V.head_dim>) +
                                          sizeof(AlgorithmShared<V, V.algorithm>);
/// What a narrow tile leaves of a wide one's.
template <std::size_t bytes>
struct Unused {
  std::byte rest[bytes];
};
template <>
struct Unused<0> {};

template <DecodeVariant V>
struct DecodeShared {
  /// The transposed products take 64 keys as their rows.
  static constexpr int tile_keys = V.algorithm == Algorithm::plain || V.paired() ? V.block_n : 64;
  /// A tile's columns are of 16 bits: elements, or pairs of bytes.
  using KeyTile = tile::SharedTile<tile_keys, V.eight_bit() ? V.head_dim / 2 : V.head_dim>;
  struct KeyBlock {
    KeyTile tile[V.block_n / tile_keys];
  };

  KeyBlock k[V.stages];
  ValueBlocks<KeyBlock, V> v;
  tile::SharedTile<V.query_rows, V.head_dim> q;
  AlgorithmShared<V, V.algorithm> own;
  [[no_unique_address]] Unused<tile_bytes<V.narrowed(V.room_rows)> - tile_bytes<V>> unused;
  tile::Pipeline<V.stages> k_pipeline;
  tile::Pipeline<V.stages> v_pipeline;
  std::uint32_t last_arriver;

  TANDEM_DEVICE KeyBlock& values(int stage) {
    if constexpr (V.values_in_keys()) {
      return k[stage];
    } else {
      return v.block[stage];
    }
  }
};

}  // namespace tandem::decode
