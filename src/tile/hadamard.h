// Rows times H diag(signs) / sqrt(d), in fp32: butterflies within a thread, then between lanes.
#pragma once

#include <bit>
#include <cstdint>

#include "core/hadamard.h"
#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::tile {

/// A chunk's signs, a bit for each column, where flip_packed_signs takes them: those of word i of 16-bit
/// elements at their upper bits, i bits lower.
TANDEM_DEVICE std::uint32_t spread_signs(std::uint32_t signs) {
  std::uint32_t spread = 0;
  TANDEM_UNROLL
  for (int i = 0; i < chunk_columns; ++i) spread |= (signs >> i & 1u) << ((i % 2 == 0 ? 15 : 31) - i / 2);
  return spread;
}
/// Those of the matrix, all positive where there is none.
TANDEM_DEVICE std::uint32_t chunk_signs(const core::HadamardView& matrix, int column) {
  return spread_signs(matrix.signs[column / 32] >> (column % 32));
}
TANDEM_DEVICE void flip_packed_signs(Chunk& chunk, std::uint32_t spread) {
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) chunk.words[i] ^= spread << i & 0x80008000u;
}
TANDEM_DEVICE void flip_signs(float (&row)[chunk_columns], std::uint32_t spread) {
  TANDEM_UNROLL
  for (int i = 0; i < chunk_columns; ++i) {
    const std::uint32_t sign = spread << (i / 2 + (i % 2 == 0 ? 16 : 0)) & 0x80000000u;
    row[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(row[i]) ^ sign);
  }
}

TANDEM_DEVICE void butterfly(float& x, float& y) {
  const float low = x, high = y;
  x = low + high;
  y = low - high;
}

/// The butterflies of a thread's own columns.
TANDEM_DEVICE void transform_chunk(float (&row)[chunk_columns]) {
  TANDEM_UNROLL
  for (int distance = 1; distance < chunk_columns; distance *= 2) {
    TANDEM_UNROLL
    for (int i = 0; i < chunk_columns; ++i)
      if ((i & distance) == 0) butterfly(row[i], row[i + distance]);
  }
}

/// The butterflies between a thread's parts of a row, which lie as far apart as a power of two.
template <int parts, int count>
TANDEM_DEVICE void transform_parts(float (&row)[parts][count]) {
  TANDEM_UNROLL
  for (int distance = 1; distance < parts; distance *= 2) {
    TANDEM_UNROLL
    for (int part = 0; part < parts; ++part) {
      TANDEM_UNROLL
      for (int i = 0; i < count; ++i)
        if ((part & distance) == 0) butterfly(row[part][i], row[part + distance][i]);
    }
  }
}

/// Warp: the butterflies between lanes of that distance. An fma, since of a choice between sum and difference
/// ptxas makes branches, where lanes wait for one another at each shuffle.
TANDEM_DEVICE void exchange_hadamard(float (&row)[chunk_columns], int column, int distance) {
  const float sign = (column / chunk_columns & distance) != 0 ? -1.f : 1.f;
  TANDEM_UNROLL
  for (float& x : row) x = hw::fma(x, sign, hw::shuffle_xor(x, static_cast<std::uint32_t>(distance)));
}

TANDEM_DEVICE void finish_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix) {
  TANDEM_UNROLL
  for (float& x : row) x = hw::fma(x, matrix.to_unit, 0.f);  // no negative zeros
}

/// Warp: rows times the matrix, but for their signs. `lanes` neighbouring lanes, the first a multiple of
/// their number, hold a row: chunk i is columns `column` + i * lanes * 8 and the seven behind it.
template <int lanes, int chunks>
TANDEM_DEVICE void transform_row(float (&row)[chunks][chunk_columns], const core::HadamardView& matrix,
                                 int column) {
  TANDEM_UNROLL
  for (auto& chunk : row) {
    transform_chunk(chunk);
    TANDEM_UNROLL
    for (int distance = 1; distance < lanes; distance *= 2) exchange_hadamard(chunk, column, distance);
  }
  transform_parts(row);
  TANDEM_UNROLL
  for (auto& chunk : row) finish_hadamard(chunk, matrix);
}

/// Warp: a chunk of a row times the matrix, a lane for each chunk, where it has `size` columns, a power of
/// two, and behind them there are zeros, which stay; in a loop, which takes fewer registers.
TANDEM_DEVICE void multiply_padded_by_hadamard(float (&row)[chunk_columns], const core::HadamardView& matrix,
                                               int column, int size) {
  flip_signs(row, chunk_signs(matrix, column));
  transform_chunk(row);
  TANDEM_DONT_UNROLL
  for (int distance = 1; distance * chunk_columns < size; distance *= 2)
    exchange_hadamard(row, column, distance);
  finish_hadamard(row, matrix);
}

}  // namespace tandem::tile
