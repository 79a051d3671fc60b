#include "hw/sim/matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/dtype.h"

namespace tandem::hw::sim {

namespace {
using Vector8 [[gnu::vector_size(32)]] = float;
using Vector4 [[gnu::vector_size(16)]] = float;

template <typename Vector>
[[gnu::always_inline]] inline void load(Vector& value, const float* address) {
  std::memcpy(&value, address, sizeof value);
}
}  // namespace

Chunk Chunk::of(Operand operand, const void* bytes) {
  if (is_16_bit(operand)) {
    Chunk chunk;
    chunk.count = 8;
    std::uint16_t elements[8];
    std::memcpy(elements, bytes, sizeof elements);
    widen(operand, elements, chunk.values);
    return chunk;
  }
  using Table = std::array<float, 256>;
  const auto table_of = [](auto value_of) {
    Table values;
    for (int i = 0; i < 256; ++i) values[i] = static_cast<float>(value_of(static_cast<std::uint8_t>(i)));
    return values;
  };
  static const Table e4m3 = table_of([](std::uint8_t bits) { return core::E4m3{bits}; });
  static const Table int8 = table_of([](std::uint8_t bits) { return std::bit_cast<core::Int8>(bits); });
  const Table& table = operand == Operand::e4m3 ? e4m3 : int8;
  Chunk chunk;
  chunk.count = 16;
  for (int i = 0; i < 16; ++i) chunk.values[i] = table[static_cast<const std::uint8_t*>(bytes)[i]];
  return chunk;
}

// Sums run over k in ascending order, each product added in fp32; fused or not as the machine has it. The
// chip adds the 16 products in one step with truncation: docs/simulator.md, "What it does not see".
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

namespace {
using Words8 [[gnu::vector_size(32)]] = std::int32_t;

constexpr int e4m3_sum_bits = 13;      ///< that a sum keeps below the largest exponent
constexpr int smallest_exponent = -6;  ///< of e4m3, subnormal numbers included
constexpr int no_exponent = -1000;     ///< of zeros

/// The exponent of each e4m3 value, as the matrix unit takes it.
[[gnu::always_inline]] inline void exponents_of(const Vector8& values, Words8& exponents) {
  Words8 words;
  std::memcpy(&words, &values, sizeof words);
  const Words8 exponent = (words >> 23 & 255) - 127;
  const Words8 clamped = exponent < smallest_exponent ? Words8{} + smallest_exponent : exponent;
  exponents = values == 0.f ? Words8{} + no_exponent : clamped;
}

/// Exponents of the products' factors B, once for all rows.
struct Exponents {
  alignas(64) std::int32_t b[2][4][16][128];
};

[[gnu::always_inline]] inline void find_exponents(const MatrixOperands (&halves)[2], int count,
                                                  Exponents& exponents) {
  for (int half = 0; half < 2; ++half) {
    for (int q = 0; q < 4; ++q) {
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < count; i += 8) {
          Vector8 values;
          load(values, &halves[half].b[q][k][i]);
          Words8 own;
          exponents_of(values, own);
          std::memcpy(&exponents.b[half][q][k][i], &own, sizeof own);
        }
      }
    }
  }
}

/// Two rows of A, as a thread's accumulators alternate, and their exponents.
struct TwoRows {
  Vector8 value[2][16];
  Words8 exponent[2][16];
};

[[gnu::always_inline]] inline void take_rows(const MatrixOperands (&halves)[2], int row, TwoRows& rows) {
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      const float x = halves[half].a[row][k], y = halves[half].a[row + 8][k];
      rows.value[half][k] = Vector8{x, x, y, y, x, x, y, y};
      exponents_of(rows.value[half][k], rows.exponent[half][k]);
    }
  }
}

/// Adds to eight accumulators of a thread, those from `i` on. `q`: its place in the quad.
template <bool cut>
[[gnu::always_inline]] inline void add_e4m3(const MatrixOperands (&halves)[2], const Exponents& exponents,
                                            const TwoRows& rows, int q, int i, Vector8& accumulator) {
  Words8 bits;
  std::memcpy(&bits, &accumulator, sizeof bits);
  Words8 largest = (bits >> 23 & 255) - 127;
  Vector8 plain = accumulator;
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      Vector8 b;
      Words8 exponent;
      load(b, &halves[half].b[q][k][i]);
      std::memcpy(&exponent, &exponents.b[half][q][k][i], sizeof exponent);
      exponent += rows.exponent[half][k];
      largest = exponent > largest ? exponent : largest;
      plain += rows.value[half][k] * b;
    }
  }
  largest = largest < -100 ? Words8{} - 100 : largest;
  const Words8 up = (127 + e4m3_sum_bits - largest) << 23, down = (127 - e4m3_sum_bits + largest) << 23;
  Vector8 to_units, unit;
  std::memcpy(&to_units, &up, sizeof up);
  std::memcpy(&unit, &down, sizeof down);
  Words8 sum = __builtin_convertvector(accumulator * to_units, Words8);
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      Vector8 b;
      load(b, &halves[half].b[q][k][i]);
      sum += __builtin_convertvector(rows.value[half][k] * b * to_units, Words8);
    }
  }
  const Vector8 exact = __builtin_convertvector(sum, Vector8) * unit;
  std::memcpy(&bits, &exact, sizeof bits);
  if (cut) bits &= ~((1 << (23 - e4m3_sum_bits)) - 1);
  Vector8 result;
  std::memcpy(&result, &bits, sizeof result);
  accumulator = plain - plain == 0.f ? result : plain;  // infinities and NaN as they are
}
template <bool cut>
[[gnu::always_inline]] inline void multiply_e4m3_by(const MatrixOperands (&halves)[2], int n,
                                                    float* const (&accumulators)[warpgroup_size]) {
  static Exponents exponents;
  const int count = n / 2;  // a multiple of 4; arrays have room up to the next of 8
  find_exponents(halves, count, exponents);
  for (int pair = 0; pair < 32; ++pair) {
    TwoRows rows;
    take_rows(halves, 16 * (pair / 8) + pair % 8, rows);
    for (int q = 0; q < 4; ++q) {
      float* own = accumulators[4 * pair + q];
      for (int i = 0; i < count; i += 8) {
        const std::size_t bytes = static_cast<std::size_t>(count - i < 8 ? count - i : 8) * sizeof(float);
        Vector8 sums{};
        std::memcpy(&sums, own + i, bytes);
        add_e4m3<cut>(halves, exponents, rows, q, i, sums);
        std::memcpy(own + i, &sums, bytes);
      }
    }
  }
}
}  // namespace

__attribute__((target_clones("avx2", "default"))) void multiply_e4m3(
    const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]) {
  multiply_e4m3_by<true>(halves, n, accumulators);
}
__attribute__((target_clones("avx2", "default"))) void multiply_e4m3_whole(
    const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]) {
  multiply_e4m3_by<false>(halves, n, accumulators);
}

// fp32 holds the sum of 32 products of int8 exactly.
void multiply_int8(const MatrixOperands (&halves)[2], int n, float* const (&accumulators)[warpgroup_size]) {
  static float sums[warpgroup_size][128];
  float* own[warpgroup_size];
  for (int t = 0; t < warpgroup_size; ++t) std::fill_n(own[t] = sums[t], n / 2, 0.f);
  for (const MatrixOperands& half : halves) multiply(half, n, own);
  for (int t = 0; t < warpgroup_size; ++t) {
    for (int i = 0; i < n / 2; ++i) {
      float& accumulator = accumulators[t][i];
      const auto sum = static_cast<std::uint32_t>(static_cast<std::int32_t>(sums[t][i]));
      accumulator = std::bit_cast<float>(std::bit_cast<std::uint32_t>(accumulator) + sum);
    }
  }
}

}  // namespace tandem::hw::sim
