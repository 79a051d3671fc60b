#include "hw/sim/matrix.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::hw::sim {

namespace {
using Vector8 [[gnu::vector_size(32)]] = float;
using Vector4 [[gnu::vector_size(16)]] = float;

template <typename Vector>
[[gnu::always_inline]] inline void load(Vector& value, const float* address) {
  std::memcpy(&value, address, sizeof value);
}

float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  // The exponent's bias differs by 112; the multiplication also normalises subnormals.
  const float finite = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude | 0x7f800000u;
  const std::uint32_t word = magnitude >= 0x0f800000u ? special : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(word | sign);
}
}  // namespace

__attribute__((target_clones("avx2", "default"))) void widen(Operand operand, const std::uint16_t* elements,
                                                             float (&values)[8]) {
  if (operand == Operand::bf16) {
    for (int i = 0; i < 8; ++i)
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(elements[i]) << 16);
  } else {
    for (int i = 0; i < 8; ++i) values[i] = from_fp16(elements[i]);
  }
}

namespace {
/// 4 bits of exponent with bias 7, 3 of mantissa; no infinities, and NaN only where all bits are set.
float from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
}  // namespace

Chunk Chunk::of(Operand operand, const void* bytes) {
  if (is_16_bit(operand)) {
    Chunk chunk{8, {}};
    std::uint16_t elements[8];
    float values[8];
    std::memcpy(elements, bytes, sizeof elements);
    widen(operand, elements, values);
    std::memcpy(chunk.values, values, sizeof values);
    return chunk;
  }
  static const auto table = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 256; ++i) values[i] = from_e4m3(static_cast<std::uint8_t>(i));
    return values;
  }();
  Chunk chunk{16, {}};
  for (int i = 0; i < 16; ++i) chunk.values[i] = table[static_cast<const std::uint8_t*>(bytes)[i]];
  return chunk;
}

// Sums run over k in ascending order, each product added in fp32; fused or not as the machine has it. The
// chip adds the 16 products in one step with truncation: docs/simulator.md, blind spots.
__attribute__((target_clones("fma", "default"))) void multiply(const MatrixOperands& operands, int n,
                                                               float* const (&accumulators)[warpgroup_size]) {
  const int count = n / 2;
  for (int pair = 0; pair < 32; ++pair) {
    const int row = 16 * (pair / 8) + pair % 8;
    Vector8 a[16];  // the thread's two rows, as its accumulators alternate
    for (int k = 0; k < 16; ++k) {
      const float x = operands.a[row][k], y = operands.a[row + 8][k];
      a[k] = Vector8{x, x, y, y, x, x, y, y};
    }
    for (int q = 0; q < 4; ++q) {
      float* own = accumulators[4 * pair + q];
      const auto& b = operands.b[q];
      int i = 0;
      for (; i + 32 <= count; i += 32) {
        Vector8 sum[4], column;
        for (int v = 0; v < 4; ++v) load(sum[v], own + i + 8 * v);
        for (int k = 0; k < 16; ++k) {
          for (int v = 0; v < 4; ++v) {
            load(column, &b[k][i + 8 * v]);
            sum[v] += a[k] * column;
          }
        }
        for (int v = 0; v < 4; ++v) std::memcpy(own + i + 8 * v, &sum[v], sizeof sum[v]);
      }
      for (; i + 8 <= count; i += 8) {
        Vector8 sum, column;
        load(sum, own + i);
        for (int k = 0; k < 16; ++k) {
          load(column, &b[k][i]);
          sum += a[k] * column;
        }
        std::memcpy(own + i, &sum, sizeof sum);
      }
      if (i < count) {
        Vector4 sum, column;
        load(sum, own + i);
        for (int k = 0; k < 16; ++k) {
          load(column, &b[k][i]);
          sum += __builtin_shufflevector(a[k], a[k], 0, 1, 2, 3) * column;
        }
        std::memcpy(own + i, &sum, sizeof sum);
      }
    }
  }
}

}  // namespace tandem::hw::sim
