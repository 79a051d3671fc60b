// Problems of the matrix units, and where their elements are in registers.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "tests/hw/conformance.h"
#include "tile/shared_tile.h"

namespace tandem::test {

using enum hw::Operand;

/// Rows of the product: those of one warpgroup. K is more than one panel of 64 columns.
inline constexpr int wgmma_m = 64, wgmma_k = 96, wgmma_steps = wgmma_k / tile::k_step;

/// hw.h's fragment maps: the place of accumulator j of the calling thread, row by row.
template <int n>
TANDEM_DEVICE int place_of_accumulator(int j) {
  const int warp = static_cast<int>(hw::thread_index()) / 32, lane = static_cast<int>(hw::lane_index());
  const int row = 16 * warp + lane / 4 + 8 * (j / 2 % 2), column = 8 * (j / 4) + 2 * (lane % 4) + j % 2;
  return row * n + column;
}
/// And of the pair of columns in register r of the A fragment of K step `step`.
TANDEM_DEVICE int place_of_fragment(int step, int r) {
  const int warp = static_cast<int>(hw::thread_index()) / 32, lane = static_cast<int>(hw::lane_index());
  const int row = 16 * warp + lane / 4 + 8 * (r % 2), column = 16 * step + 8 * (r / 2) + 2 * (lane % 4);
  return row * wgmma_k + column;
}

/// Operands as floats that 16 bits hold exactly: a is 128 x K (the product uses the last 64 rows), b is K x
/// n, d is 64 x n.
struct Matrices {
  int n;
  std::vector<float> a, b, d;

  float product(int row, int column, hw::Accumulate first) const {
    double sum = first == hw::Accumulate::add ? d[static_cast<std::size_t>(row * n + column)] : 0;
    for (int k = 0; k < wgmma_k; ++k) sum += term(row, column, k);
    return static_cast<float>(sum);
  }
  /// What the sum's terms could add up to without cancelling.
  double magnitude(int row, int column) const {
    double sum = std::abs(d[static_cast<std::size_t>(row * n + column)]);
    for (int k = 0; k < wgmma_k; ++k) sum += std::abs(term(row, column, k));
    return sum;
  }

 private:
  double term(int row, int column, int k) const {
    return static_cast<double>(a[static_cast<std::size_t>(row * wgmma_k + k)]) *
           b[static_cast<std::size_t>(k * n + column)];
  }
};

/// `draw()` gives the values.
template <typename Draw>
Matrices make_matrices(int n, Draw draw) {
  const auto size = static_cast<std::size_t>(n);
  Matrices m{n, std::vector<float>(wgmma_m * wgmma_k), std::vector<float>(wgmma_k * size),
             std::vector<float>(wgmma_m * size)};
  for (auto* values : {&m.a, &m.b, &m.d}) {
    for (float& x : *values) x = draw();
  }
  return m;
}

template <hw::Operand operand>
std::uint16_t bits_of(float value) {
  if constexpr (operand == hw::Operand::bf16) return core::Bf16::from(value).bits;
  return core::Fp16::from(value).bits;
}

/// Small integers, whose products fp32 holds exactly in any order of the sums.
inline Matrices integer_matrices(int n) {
  std::mt19937 random(static_cast<unsigned>(n));
  return make_matrices(n, [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); });
}

/// Numbers with which a unit's own order and width of sums shows: 8 significant bits over 12 exponents.
inline Matrices real_matrices(int n) {
  std::mt19937 random(23);
  return make_matrices(n, [&] {
    const auto mantissa = static_cast<float>(static_cast<int>(random() % 511) - 255);
    return std::ldexp(mantissa, -static_cast<int>(random() % 12));
  });
}

/// Bit for bit what plain code computes of integer_matrices.
inline void expect_exact(const std::vector<float>& result, const Matrices& m, hw::Accumulate first) {
  std::vector<float> expected;
  for (int i = 0; i < wgmma_m * m.n; ++i) expected.push_back(m.product(i / m.n, i % m.n, first));
  expect_equal(result, expected, static_cast<std::size_t>(m.n));
}

/// What plain code can say of real_matrices, whose product is added to D; keeps the result as `name`.
inline void expect_close(const std::vector<float>& result, const Matrices& m, const std::string& name) {
  for (int i = 0; i < wgmma_m * m.n; ++i) {
    ASSERT_NEAR(result[static_cast<std::size_t>(i)], m.product(i / m.n, i % m.n, hw::Accumulate::add),
                2e-6 * m.magnitude(i / m.n, i % m.n))
        << name << ", row " << i / m.n << ", column " << i % m.n;
  }
  keep_golden(name, result);
}

}  // namespace tandem::test
