// Rotary position embedding of 16-byte pieces of rows, in fp32. Source: Su et al., "RoFormer", 2021,
// equation 34; half-split pairs as in GPT-NeoX.
#pragma once

#include <cstdint>

#include "core/rotary.h"
#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::tile {

TANDEM_DEVICE Chunk load_chunk(const void* address) {
  Chunk chunk;
  hw::load_global(chunk.words, address);
  return chunk;
}

/// The eight elements of a chunk.
template <hw::Operand operand>
TANDEM_DEVICE void unpack_chunk(float (&values)[8], const Chunk& chunk) {
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = hw::unpack_low<operand>(chunk.words[i]);
    values[2 * i + 1] = hw::unpack_high<operand>(chunk.words[i]);
  }
}

/// Eight entries of a table from `index` (a multiple of 8) on.
template <hw::Operand operand>
TANDEM_DEVICE void load_angles(float (&values)[8], const void* table, bool fp32, std::int64_t index) {
  if (!fp32) {
    unpack_chunk<operand>(values, load_chunk(static_cast<const std::uint16_t*>(table) + index));
    return;
  }
  TANDEM_UNROLL
  for (int i = 0; i < 8; ++i) values[i] = hw::load_global(static_cast<const float*>(table) + index + i);
}

/// Columns `column` (a multiple of 8, below rotary.dim) to column + 7 of a row of 16-bit elements that
/// belongs to the token at `position`, rotated. `chunk_at(column)` is the row's chunk there, `own` this one.
template <hw::Operand operand, typename ChunkAt>
TANDEM_DEVICE void rotate_chunk(float (&rotated)[8], const Chunk& own, const ChunkAt& chunk_at, int column,
                                const core::RotaryView& rotary, int position) {
  const int half = rotary.dim / 2, last = rotary.positions - 1;
  const int known = position < 0 ? 0 : (position > last ? last : position);
  const int angle = rotary.interleaved ? column / 2 : column % half;
  const std::int64_t index = static_cast<std::int64_t>(known) * half + angle / 8 * 8;
  float x[8], cos[8], sin[8];
  unpack_chunk<operand>(x, own);
  load_angles<operand>(cos, rotary.cos, rotary.fp32, index);
  load_angles<operand>(sin, rotary.sin, rotary.fp32, index);
  if (rotary.interleaved) {
    const bool upper = angle % 8 != 0;  // which four of the eight angles
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float c = upper ? cos[4 + i] : cos[i], s = upper ? sin[4 + i] : sin[i];
      rotated[2 * i] = hw::fma(x[2 * i], c, -x[2 * i + 1] * s);
      rotated[2 * i + 1] = hw::fma(x[2 * i + 1], c, x[2 * i] * s);
    }
  } else {
    float partner[8];
    unpack_chunk<operand>(partner, chunk_at(column < half ? column + half : column - half));
    const float sign = column < half ? -1.f : 1.f;
    TANDEM_UNROLL
    for (int i = 0; i < 8; ++i) rotated[i] = hw::fma(x[i], cos[i], sign * partner[i] * sin[i]);
  }
}

/// The same of any columns, rounded; those that no rotary embedding turns as they are.
template <hw::Operand operand>
TANDEM_DEVICE Chunk rotated_chunk(const Chunk& own, const std::uint16_t* row, int column,
                                  const core::RotaryView& rotary, int position) {
  if (rotary.cos == nullptr || column >= rotary.dim) return own;
  float rotated[8];
  const auto chunk_at = [row](int at) { return load_chunk(row + at); };
  rotate_chunk<operand>(rotated, own, chunk_at, column, rotary, position);
  Chunk chunk;
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) chunk.words[i] = hw::pack<operand>(rotated[2 * i], rotated[2 * i + 1]);
  return chunk;
}

template <hw::Operand operand>
TANDEM_DEVICE Chunk load_rotated(const std::uint16_t* row, int column, const core::RotaryView& rotary,
                                 int position) {
  return rotated_chunk<operand>(load_chunk(row + column), row, column, rotary, position);
}

}  // namespace tandem::tile
