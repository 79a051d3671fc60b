// Rows times H diag(signs) / sqrt(d), in fp32: butterflies within a thread, then between lanes.
#pragma once

#include <cstdint>

#include "core/hadamard.h"
#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::tile {

/// Signs, and the butterflies of a thread's own columns, from `column` on.
TANDEM_DEVICE void begin_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix, int column) {
  const std::uint32_t signs = matrix.signs[column / 32] >> (column % 32);
  TANDEM_UNROLL
  for (int i = 0; i < chunk_columns; ++i) row[i] = (signs >> i & 1u) != 0 ? -row[i] : row[i];
  TANDEM_UNROLL
  for (int distance = 1; distance < chunk_columns; distance *= 2) {
    TANDEM_UNROLL
    for (int i = 0; i < chunk_columns; ++i) {
      if ((i & distance) != 0) continue;
      const float low = row[i], high = row[i + distance];
      row[i] = low + high;
      row[i + distance] = low - high;
    }
  }
}

/// Warp: the butterflies between lanes of that distance.
TANDEM_DEVICE void exchange_hadamard(float (&row)[chunk_columns], int column, int distance) {
  const bool upper = (column / chunk_columns & distance) != 0;
  TANDEM_UNROLL
  for (float& x : row) {
    const float other = hw::shuffle_xor(x, static_cast<std::uint32_t>(distance));
    x = upper ? other - x : x + other;
  }
}

TANDEM_DEVICE void finish_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix) {
  TANDEM_UNROLL
  for (float& x : row) x = hw::fma(x, matrix.to_unit, 0.f);  // no negative zeros
}

/// Warp: `row` is columns `column` to column + 7 of a row that `lanes` neighbouring lanes hold, the first a
/// multiple of their number. All of them are the matrix's.
template <int lanes>
TANDEM_DEVICE void multiply_by_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix,
                                        int column) {
  begin_hadamard(row, matrix, column);
  TANDEM_UNROLL
  for (int distance = 1; distance < lanes; distance *= 2) exchange_hadamard(row, column, distance);
  finish_hadamard(row, matrix);
}

/// The same where the matrix has `size` columns, a power of two, and behind them there are zeros, which stay;
/// in a loop, which takes fewer registers.
TANDEM_DEVICE void multiply_padded_by_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix,
                                               int column, int size) {
  begin_hadamard(row, matrix, column);
  TANDEM_DONT_UNROLL
  for (int distance = 1; distance * chunk_columns < size; distance *= 2)
    exchange_hadamard(row, column, distance);
  finish_hadamard(row, matrix);
}

}  // namespace tandem::tile
