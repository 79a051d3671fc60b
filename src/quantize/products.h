// Rows times the Hadamard matrix by WGMMA: its entries are 1 and -1, and elements of 16 bits go to it as they
// come from memory. So butterflies are left between panels only, where with lanes that exchange sums a
// tensor's instructions would take longer than its bytes (docs/fp8.md, The quantiser).
#pragma once

#include <bit>
#include <cstdint>

#include "core/hadamard.h"
#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/place.h"
#include "quantize/shared_storage.h"
#include "tile/gemm.h"
#include "tile/hadamard.h"
#include "tile/warp_reduce.h"

namespace tandem::quantize {

/// Columns of a panel that a thread has of a row: neighbours, which it stores at once. Lane l of four has
/// columns 16 * l to 16 * l + 15.
inline constexpr int lane_columns = 16;

/// The panel's column that WGMMA's column n is. Those that a lane holds, 8 * j + 2 * lane + {0, 1}, are
/// neighbours so.
constexpr int product_column(int n) { return n % 8 / 2 * lane_columns + n / 8 * 2 + n % 2; }

/// Entries of 1 and -1. Who calls it publishes them by a barrier.
template <QuantizeVariant V>
TANDEM_DEVICE void place_matrix(const QuantizeArguments& args, QuantizeShared<V>& shared) {
  constexpr std::uint32_t one = V.operand == hw::Operand::bf16 ? 0x3f80u : 0x3c00u, ones = one << 16 | one;
  constexpr int row_chunks = V.head_dim / chunk_columns;
  TANDEM_DONT_UNROLL
  for (int i = static_cast<int>(hw::thread_index()); i < panel_columns * row_chunks; i += V.threads()) {
    const int n = i / row_chunks, column = i % row_chunks * chunk_columns, in_panel = column % panel_columns;
    std::uint32_t signs = 0;  // of H: whether its row and its column have an odd number of bits in common
    TANDEM_UNROLL
    for (int c = 0; c < chunk_columns; ++c)
      signs |= (std::popcount(static_cast<std::uint32_t>(product_column(n) & (in_panel + c))) & 1u) << c;
    tile::Chunk chunk{{ones, ones, ones, ones}};
    tile::flip_packed_signs(chunk, tile::spread_signs(signs) ^ tile::chunk_signs(args.hadamard, column));
    shared.matrix[column / panel_columns].chunk(n, in_panel) = chunk;
  }
  hw::fence_async_proxy();
}

/// A thread's part of a tile: of each panel 16 columns of two rows, as WGMMA leaves them.
template <QuantizeVariant V>
struct ProductRows {
  static constexpr int count = 2, lanes = panel_columns / lane_columns;
  float value[V.panels()][panel_columns / 2];
  float to_unit;  ///< of them

  /// From the stage into which they have come, as they are quantised but for to_unit. Each warpgroup 64 rows.
  TANDEM_DEVICE void take(const QuantizeArguments& args, QuantizeShared<V>& shared, const Place&, int stage) {
    to_unit = args.hadamard.to_unit;
    const int first_row = static_cast<int>(hw::thread_index()) / hw::warpgroup_size * tile::warpgroup_rows;
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int panel = 0; panel < V.panels(); ++panel)
      tile::issue_scores<V.operand>(
          value[panel], shared.x[stage].template rows_of_panel<tile::warpgroup_rows>(panel, first_row),
          shared.matrix[panel]);
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    tile::transform_parts(value);
  }

  /// The largest magnitude of the warp's rows.
  TANDEM_DEVICE float largest() const { return tile::warp_max(largest_magnitude(value)) * to_unit; }

  /// In the tile.
  TANDEM_DEVICE static int row(int i) {
    const auto thread = static_cast<int>(hw::thread_index());
    return tile::upper_row(thread / hw::warp_size, thread % hw::warp_size) + 8 * i;
  }

  /// Visits the thread's elements of row i, four neighbours at a time, without to_unit.
  template <typename Visit>
  TANDEM_DEVICE void for_each_four(int i, const Visit& visit) const {
    TANDEM_UNROLL
    for (const auto& x : value) {
      TANDEM_UNROLL
      for (int at = 2 * i; at < panel_columns / 2; at += 8) visit({x[at], x[at + 1], x[at + 4], x[at + 5]});
    }
  }

  /// inverse_of(i): of the scale of row i.
  template <typename InverseOf>
  TANDEM_DEVICE void store_rows(const QuantizeArguments& args, const Place& place,
                                const InverseOf& inverse_of) const {
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      const int at = place.first() + row(i);
      const float inverse = inverse_of(i) * to_unit;
      std::uint8_t* address = place.out(args) + at * args.out.row_stride +
                              static_cast<int>(hw::thread_index()) % lanes * lane_columns;
      TANDEM_UNROLL
      for (int panel = 0; panel < V.panels(); ++panel) {
        std::uint32_t words[4];
        TANDEM_UNROLL
        for (int word = 0; word < 4; ++word) {
          const float* const x = &value[panel][8 * word + 2 * i];
          words[word] = pack<V>(x[0], x[1], x[4], x[5], inverse);
        }
        if (at < args.length) hw::store_kept<4>(address + panel * panel_columns, words);
      }
    }
  }
};

}  // namespace tandem::quantize
