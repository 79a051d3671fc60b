// A row of accumulators on its way to global memory, without shared memory.
#pragma once

#include <cstdint>

#include "hw/hw.h"

namespace tandem::tile {

/// Transposes a 4 x 4 matrix of words over the four lanes of a quad: lane t's word b becomes lane b's word t.
TANDEM_DEVICE void transpose_quad(std::uint32_t (&words)[4]) {
  const std::uint32_t lane = hw::lane_index();
  TANDEM_UNROLL
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const std::uint32_t sent = upper ? words[low] : words[high];
      const std::uint32_t received = hw::shuffle_xor(sent, distance);
      (upper ? words[low] : words[high]) = received;
    }
  }
}

/// One row of a thread's output as 16-byte pieces: each thread holds two of every eight columns; the quad
/// exchanges them so that lane t of it has all eight of every fourth group.
template <hw::Operand operand, int columns>
struct OutputRow {
  static constexpr int pieces = columns / 32;
  std::uint32_t words[pieces][4];

  /// Row `half` (0: upper, 1: lower) of the accumulators.
  TANDEM_DEVICE OutputRow(const float (&output)[columns / 2], int half) {
    TANDEM_UNROLL
    for (int p = 0; p < pieces; ++p) {
      TANDEM_UNROLL
      for (int g = 0; g < 4; ++g) {
        const int j = 4 * (4 * p + g) + 2 * half;
        words[p][g] = hw::pack<operand>(output[j], output[j + 1]);
      }
      transpose_quad(words[p]);
    }
  }

  /// Stores the columns that exist.
  TANDEM_DEVICE void store(std::uint16_t* row, int head_dim) const {
    const int lane_in_quad = static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int p = 0; p < pieces; ++p) {
      const int column = 32 * p + 8 * lane_in_quad;
      if (column < head_dim) hw::store_global(row + column, words[p]);
    }
  }
};

}  // namespace tandem::tile
