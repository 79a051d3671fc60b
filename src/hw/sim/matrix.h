// The arithmetic of one WGMMA: D (64 x n) += A (64 x 16) B (16 x n), on fragments as the threads hold them;
// of 8-bit operands, whose K is 32, in two halves.
#pragma once

#include <bit>
#include <cstdint>

#include "hw/types.h"

namespace tandem::hw::sim {

/// Operands as fp32. B is stored for the four lane positions q of a quad: b[q][k][4 * j + 2 * i + c] is
/// element (k, 8 * j + 2 * q + c), for both rows i, so that it lines up with a thread's accumulators.
struct MatrixOperands {
  alignas(64) float a[64][16];
  alignas(64) float b[4][16][128];
};

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  // The exponent's bias differs by 112; the multiplication also normalises subnormals.
  const float finite = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude | 0x7f800000u;
  const std::uint32_t word = magnitude >= 0x0f800000u ? special : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(word | sign);
}

/// Sixteen-bit elements to fp32.
template <int count>
void widen(Operand operand, const std::uint16_t (&elements)[count], float* values) {
  if (operand == Operand::bf16) {
    for (int i = 0; i < count; ++i) values[i] = from_bf16(elements[i]);
  } else {
    for (int i = 0; i < count; ++i) values[i] = from_fp16(elements[i]);
  }
}

/// The elements of 16 bytes: 8, or 16 of 8 bits.
struct Chunk {
  int count;
  float values[16];
  static Chunk of(Operand operand, const void* bytes);
};

/// accumulators[t] of the 128 threads += their part of the product.
void multiply(const MatrixOperands& operands, int n, float* const (&accumulators)[warpgroup_size]);

/// The same of e4m3 operands, to the bit as the chip adds (docs/simulator.md, Numbers): all 32 products and
/// the accumulator are cut 13 bits below the largest exponent among them, and so is their sum.
void multiply_e4m3(const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]);
/// The same, but for the last cut: what the chip rounds to fp16.
void multiply_e4m3_whole(const MatrixOperands (&halves)[2], int n,
                         float* const (&accumulators)[warpgroup_size]);
/// The same of int8 operands: accumulators are s32, in the bits of floats.
void multiply_int8(const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]);

}  // namespace tandem::hw::sim
