// Matrices of a warp: mma.sync, and what brings and takes its fragments.
#pragma once

#include <algorithm>

#include "tests/hw/matrices.h"

namespace tandem::test {

class WarpMatrixVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, WarpMatrixVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// D += A B of four warps, 16 rows each, with the fragment maps of hw.h.
template <hw::Operand operand, int n>
struct MultiplyByWarps {
  static constexpr int threads = hw::warpgroup_size;
  using Shared = NoShared;
  const std::uint16_t *a, *b;  ///< 64 x K, K x n
  float* d;                    ///< 64 x n

  TANDEM_DEVICE static std::uint32_t pair(const std::uint16_t* first, int distance) {
    return first[0] | static_cast<std::uint32_t>(first[distance]) << 16;
  }

  TANDEM_DEVICE void operator()() const {
    const int lane = static_cast<int>(hw::lane_index());
    for (int group = 0; group < n / 8; ++group) {
      float own[4];
      TANDEM_UNROLL
      for (int j = 0; j < 4; ++j) own[j] = d[place_of_accumulator<n>(4 * group + j)];
      for (int step = 0; step < wgmma_steps; ++step) {
        std::uint32_t a_fragment[4], b_fragment[2];
        TANDEM_UNROLL
        for (int r = 0; r < 4; ++r) a_fragment[r] = pair(a + place_of_fragment(step, r), 1);
        TANDEM_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int k = 16 * step + 8 * h + 2 * (lane % 4), column = 8 * group + lane / 4;
          b_fragment[h] = pair(b + k * n + column, n);
        }
        hw::mma_sync<operand>(own, a_fragment, b_fragment);
      }
      TANDEM_UNROLL
      for (int j = 0; j < 4; ++j) d[place_of_accumulator<n>(4 * group + j)] = own[j];
    }
  }
};

template <hw::Operand operand>
std::vector<float> multiply_by_warps(const machine::Mode& mode, const Matrices& m) {
  std::vector<std::uint16_t> a, b;
  for (const float x : m.a) a.push_back(bits_of<operand>(x));
  for (const float x : m.b) b.push_back(bits_of<operand>(x));
  const machine::Buffer device_a(a), device_b(b);
  const machine::Buffer d(m.d);
  machine::run(mode, 1, MultiplyByWarps<operand, 16>{device_a.data(), device_b.data(), d.data()});
  return d.read();
}

TEST_P(WarpMatrixVerbs, ProductsOfIntegersAreExact) {
  const Matrices m = integer_matrices(16);
  expect_exact(multiply_by_warps<bf16>(GetParam(), m), m, hw::Accumulate::add);
  expect_exact(multiply_by_warps<fp16>(GetParam(), m), m, hw::Accumulate::add);
}

TEST_P(WarpMatrixVerbs, ProductsOfRealNumbersAreFp32Accurate) {
  const Matrices m = real_matrices(16);
  expect_close(multiply_by_warps<bf16>(GetParam(), m), m, "mma_bf16");
  expect_close(multiply_by_warps<fp16>(GetParam(), m), m, "mma_fp16");
}

/// Moves `count` matrices between registers and rows of shared memory, whose order is no order, and whose
/// distance is more than a row.
template <int count, bool transposed>
struct MoveMatrices {
  static constexpr int threads = 32, rows = 8 * count, row_elements = 24;
  struct Shared {
    alignas(16) std::uint16_t elements[rows * row_elements];
  };
  const std::uint16_t* values;  ///< rows x 8
  std::uint32_t* registers;     ///< of each lane, after a load
  std::uint16_t* stored;        ///< rows x 8, after a store of what was loaded plainly

  /// Where a matrix's row lies in shared memory.
  TANDEM_DEVICE static int place(int row) { return (row * 5 + 3) % rows * row_elements; }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int lane = static_cast<int>(hw::lane_index());
    for (int i = lane; i < rows * 8; i += threads) shared.elements[place(i / 8) + i % 8] = values[i];
    hw::sync_block();
    std::uint32_t own[count];
    // Lanes beyond the rows name another row, which must not be used.
    std::uint16_t* row = &shared.elements[place(lane < rows ? lane : (lane * 3 + 1) % rows)];
    if constexpr (transposed) {
      hw::load_matrices_transposed(own, row);
    } else {
      hw::load_matrices(own, row);
    }
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) registers[lane * count + i] = own[i];
    hw::sync_block();
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      const std::uint16_t* pair = values + (8 * i + lane / 4) * 8 + 2 * (lane % 4);
      own[i] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
    if constexpr (transposed) {
      hw::store_matrices_transposed(row, own);
    } else {
      hw::store_matrices(row, own);
    }
    hw::sync_block();
    for (int i = lane; i < rows * 8; i += threads) stored[i] = shared.elements[place(i / 8) + i % 8];
  }
};

/// Each 8 x 8 matrix of a stack, transposed or not.
inline std::vector<std::uint16_t> rotated(const std::vector<std::uint16_t>& values, bool transposed) {
  std::vector<std::uint16_t> result = values;
  for (std::size_t i = 0; transposed && i < values.size(); ++i) {
    const std::size_t matrix = i / 64 * 64, row = i / 8 % 8, column = i % 8;
    result[matrix + column * 8 + row] = values[i];
  }
  return result;
}

class MovesOfMatrices : public WarpMatrixVerbs {
 protected:
  template <int count, bool transposed>
  void check() const {
    SCOPED_TRACE(std::to_string(count) + (transposed ? " matrices, transposed" : " matrices"));
    using Body = MoveMatrices<count, transposed>;
    std::vector<std::uint16_t> values(Body::rows * 8);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(1000 + i);
    const std::vector<std::uint16_t> expected = rotated(values, transposed);
    std::vector<std::uint32_t> expected_registers;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = (8 * i + lane / 4) * 8 + 2 * (lane % 4);
        expected_registers.push_back(expected[at] | static_cast<std::uint32_t>(expected[at + 1]) << 16);
      }
    }
    const machine::Buffer in(values), stored(poisoned<std::uint16_t>(values.size()));
    const machine::Buffer registers(poisoned<std::uint32_t>(32 * count));
    run(Body{in.data(), registers.data(), stored.data()});
    expect_equal(registers.read(), expected_registers, count);
    expect_equal(stored.read(), expected, 8);
  }
};
INSTANTIATE_TEST_SUITE_P(Machine, MovesOfMatrices, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

TEST_P(MovesOfMatrices, MatricesMoveBetweenSharedRowsAndRegisters) {
  check<1, false>();
  check<2, false>();
  check<4, false>();
}

TEST_P(MovesOfMatrices, MatricesAreTransposedOnTheirWay) {
  check<1, true>();
  check<2, true>();
  check<4, true>();
}

/// One matrix a warp.
struct TransposeMatrix {
  static constexpr int threads = 64;
  using Shared = NoShared;
  const std::uint32_t* before;
  std::uint32_t* after;
  TANDEM_DEVICE void operator()() const {
    after[hw::thread_index()] = hw::transpose_matrix(before[hw::thread_index()]);
  }
};

TEST_P(WarpMatrixVerbs, MatricesAreTransposedBetweenRegisters) {
  std::vector<std::uint16_t> values(2 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(7 * i + 1);
  const auto words = [](const std::vector<std::uint16_t>& elements) {
    std::vector<std::uint32_t> result;
    for (std::size_t i = 0; i < elements.size(); i += 2) {
      result.push_back(elements[i] | static_cast<std::uint32_t>(elements[i + 1]) << 16);
    }
    return result;
  };
  const machine::Buffer before(words(values));
  const machine::Buffer after(poisoned<std::uint32_t>(TransposeMatrix::threads));
  run(TransposeMatrix{before.data(), after.data()});
  expect_equal(after.read(), words(rotated(values, true)), 4);
}

}  // namespace tandem::test
