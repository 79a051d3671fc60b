// The arithmetic of one WGMMA: D (64 x n) += A (64 x 16) B (16 x n), on fragments as the threads hold them;
// of 8-bit operands, whose K is 32, in two halves.
#pragma once

#include <cstdint>

#include "hw/types.h"

namespace tandem::hw::sim {

/// Operands as fp32. B is stored for the four lane positions q of a quad: b[q][k][4 * j + 2 * i + c] is
/// element (k, 8 * j + 2 * q + c), for both rows i, so that it lines up with a thread's accumulators.
struct MatrixOperands {
  alignas(64) float a[64][16];
  alignas(64) float b[4][16][128];
};

/// Eight 16-bit elements to fp32.
void widen(Operand operand, const std::uint16_t* elements, float (&values)[8]);

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
/// The same of int8 operands: accumulators are s32, in the bits of floats.
void multiply_int8(const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]);

}  // namespace tandem::hw::sim
