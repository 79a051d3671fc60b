// What a block of the quantising kernel keeps in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/quantised.h"
#include "hw/hw.h"
#include "quantize/variant.h"
#include "tile/shared_tile.h"
#include "tile/warp_reduce.h"

namespace tandem::quantize {

/// 128 tokens of a head, as TMA brings them.
template <QuantizeVariant V>
using Tile = tile::SharedTile<block_tokens, V.head_dim>;

/// Eight elements of 8 bits.
struct alignas(8) Pair {
  std::uint32_t words[2];
};

/// 128 rows of 8-bit elements. Behind each 16 tokens are 16 bytes that nobody uses: so a warp that writes
/// pairs of rows 64 apart, or reads words of the same row of eight sixteens, meets each bank once.
template <int columns>
struct alignas(16) PackedRows {
  static constexpr int group_words = core::key_group * columns / 4 + 4;
  std::uint32_t words[block_tokens / core::key_group][group_words];

  /// Of a token of a group, four columns from `column` on.
  TANDEM_DEVICE std::uint32_t word(int group, int token, int column) const {
    return words[group][token * (columns / 4) + column / 4];
  }
  /// Eight columns from `column` on; `ahead` of it finds others from the same address.
  TANDEM_DEVICE Pair* pair(int row, int column) {
    void* address = &words[row / core::key_group][row % core::key_group * (columns / 4) + column / 4];
    return static_cast<Pair*>(address);
  }
  /// How many pairs ahead are such further rows, a multiple of 16, and columns.
  static constexpr int ahead(int rows, int further_columns) {
    return (rows / core::key_group * group_words + further_columns / 4) / 2;
  }
};
/// The matrix as the B operand of a panel's product: row n has what column product_column(n) of the output
/// takes of the panel's columns, with their signs.
using Matrix = tile::SharedTile<panel_columns, panel_columns>;

struct None {};

template <QuantizeVariant V>
struct QuantizeShared {
  static constexpr int warps = V.threads() / hw::warp_size;

  Tile<V> x[V.stages()];
  std::conditional_t<V.by_column, PackedRows<V.head_dim>, None> packed[V.terms];
  std::conditional_t<V.products, Matrix, None> matrix[V.panels()];
  /// Of each warp. Tiles take turns, so that nobody waits before the next one's are written.
  float of_warp[2][warps];
  /// tile::chunk_signs; where there is a `matrix`, in it.
  std::conditional_t<V.products, None, std::uint32_t> signs[V.head_dim / chunk_columns];
  hw::Barrier full[V.stages()];  ///< completes when a stage's tile has landed

  TANDEM_DEVICE void publish(int turn, float largest) {
    const std::uint32_t warp = hw::warp_index();
    if (hw::lane_index() == 0) of_warp[turn][warp] = largest;
  }
  TANDEM_DEVICE float largest(int turn) const {
    return tile::warp_max<warps>(of_warp[turn][hw::lane_index() % warps]);
  }
};

}  // namespace tandem::quantize
