// The matrix unit: every n, both operand types, every form, through the tiles that kernels use.
//
// Operands and sums are small integers, so that fp32 holds every intermediate result exactly and results are
// compared bit for bit, whatever the order of the sums.
#pragma once

#include <bit>
#include <numeric>
#include <string>
#include <type_traits>

#include "tests/hw/matrices.h"
#include "tests/support/e4m3_sum.h"
#include "tile/gemm.h"
#include "tile/shared_tile.h"

namespace tandem::test {

class MatrixVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, MatrixVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

enum class SourceOfA { shared, shared_mn_major, registers };

template <hw::Major major, typename Tile>
TANDEM_DEVICE hw::MatrixDescriptor descriptor(const Tile& tile, int step) {
  if constexpr (major == hw::Major::k) {
    return tile.k_major(step);
  } else {
    return tile.mn_major(step);
  }
}

/// D = A B [+ D] of one warpgroup.
template <hw::Operand operand, int n, hw::Major b_major, SourceOfA source>
struct Multiply {
  static constexpr int threads = hw::warpgroup_size;
  static constexpr bool k_major = b_major == hw::Major::k;
  static constexpr hw::Major a_major = source == SourceOfA::shared_mn_major ? hw::Major::mn : hw::Major::k;
  using TileA = std::conditional_t<a_major == hw::Major::k, tile::SharedTile<wgmma_m, wgmma_k>,
                                   tile::SharedTile<wgmma_k, wgmma_m>>;
  using TileB = std::conditional_t<k_major, tile::SharedTile<n, wgmma_k>, tile::SharedTile<wgmma_k, n>>;
  struct Shared {
    TileA a;
    TileB b;
    hw::Barrier loaded;
  };

  hw::TensorMap a_map, b_map;
  const std::uint16_t* a;  ///< as in a_map, for fragments
  float* d;                ///< 64 x n
  hw::Accumulate first;

  TANDEM_DEVICE void load(Shared& shared) const {
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::thread_index() == 0) {
      hw::barrier_arrive_expecting(shared.loaded, TileA::bytes + TileB::bytes);
      tile::load_tile(shared.a, hw::Panels::whole_ones(a_map), shared.loaded, hw::BoxOrigin{0, 0, 0, 0});
      tile::load_tile(shared.b, hw::Panels::whole_ones(b_map), shared.loaded, hw::BoxOrigin{0, 0, 0, 0});
    }
    hw::barrier_wait(shared.loaded, 0);
    hw::sync_warp();
  }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    load(shared);
    float accumulators[n / 2];
    TANDEM_UNROLL
    for (int j = 0; j < n / 2; ++j) accumulators[j] = d[place_of_accumulator<n>(j)];
    std::uint32_t fragment[wgmma_steps][4] = {};
    if constexpr (source == SourceOfA::registers) {
      TANDEM_UNROLL
      for (int i = 0; i < 4 * wgmma_steps; ++i) {
        const std::uint16_t* pair = a + place_of_fragment(i / 4, i % 4);
        fragment[i / 4][i % 4] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
      }
    }
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < wgmma_steps; ++step) {
      const hw::MatrixDescriptor b = descriptor<b_major>(shared.b, step);
      const hw::Accumulate accumulate = step == 0 ? first : hw::Accumulate::add;
      if constexpr (source == SourceOfA::registers) {
        hw::wgmma_rs<operand, n, b_major>(accumulators, fragment[step], b, accumulate);
      } else {
        hw::wgmma_ss<operand, n, b_major, a_major>(accumulators, descriptor<a_major>(shared.a, step), b,
                                                   accumulate);
      }
    }
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    TANDEM_UNROLL
    for (int j = 0; j < n / 2; ++j) d[place_of_accumulator<n>(j)] = accumulators[j];
  }
};

/// Runs one product on the machine; the result is 64 x n.
template <hw::Operand operand, int n, hw::Major b_major, SourceOfA source>
std::vector<float> multiply(const machine::Mode& mode, const Matrices& m, hw::Accumulate first) {
  using Body = Multiply<operand, n, b_major, source>;
  std::vector<std::uint16_t> a(m.a.size()), b(m.b.size());
  for (int row = 0; row < wgmma_m; ++row) {
    for (int k = 0; k < wgmma_k; ++k) {
      const int place = Body::a_major == hw::Major::k ? row * wgmma_k + k : k * wgmma_m + row;
      a[static_cast<std::size_t>(place)] = bits_of<operand>(m.a[static_cast<std::size_t>(row * wgmma_k + k)]);
    }
  }
  for (int k = 0; k < wgmma_k; ++k) {
    for (int c = 0; c < n; ++c) {
      const int place = Body::k_major ? c * wgmma_k + k : k * n + c;
      b[static_cast<std::size_t>(place)] = bits_of<operand>(m.b[static_cast<std::size_t>(k * n + c)]);
    }
  }
  const machine::Buffer device_a(a), device_b(b);
  const machine::Buffer d(m.d);
  const int a_rows = Body::TileA::rows, a_columns = Body::TileA::columns;
  const int b_rows = Body::TileB::rows, b_columns = Body::TileB::columns;
  machine::run(mode, 1,
               Body{machine::encode(matrix_request(device_a.data(), a_rows, a_columns, a_rows)),
                    machine::encode(matrix_request(device_b.data(), b_rows, b_columns, b_rows)),
                    device_a.data(), d.data(), first});
  return d.read();
}

template <hw::Operand operand, hw::Major b_major, SourceOfA source, int n>
void expect_exact_product(const machine::Mode& mode) {
  const Matrices m = integer_matrices(n);
  for (const hw::Accumulate first : {hw::Accumulate::overwrite, hw::Accumulate::add}) {
    SCOPED_TRACE("n = " + std::to_string(n) + (first == hw::Accumulate::add ? ", add" : ", overwrite"));
    expect_exact(multiply<operand, n, b_major, source>(mode, m, first), m, first);
  }
}

template <int... n>
struct Sizes {
  template <hw::Operand operand, hw::Major b_major, SourceOfA source>
  static void expect_exact_products(const machine::Mode& mode) {
    (expect_exact_product<operand, b_major, source, n>(mode), ...);
  }
};
/// Every n of hw/sm90/wgmma.h.
using AllSizes = Sizes<8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256>;
/// For the two forms that no kernel uses yet.
using SomeSizes = Sizes<8, 64, 80, 256>;
/// Columns of decode's products.
using DecodeSizes = Sizes<8, 16, 32, 64>;

TEST_P(MatrixVerbs, SharedTimesKMajorSharedBf16) {
  AllSizes::expect_exact_products<bf16, hw::Major::k, SourceOfA::shared>(GetParam());
}
TEST_P(MatrixVerbs, SharedTimesKMajorSharedFp16) {
  AllSizes::expect_exact_products<fp16, hw::Major::k, SourceOfA::shared>(GetParam());
}
TEST_P(MatrixVerbs, RegistersTimesMnMajorSharedBf16) {
  AllSizes::expect_exact_products<bf16, hw::Major::mn, SourceOfA::registers>(GetParam());
}
TEST_P(MatrixVerbs, RegistersTimesMnMajorSharedFp16) {
  AllSizes::expect_exact_products<fp16, hw::Major::mn, SourceOfA::registers>(GetParam());
}
TEST_P(MatrixVerbs, SharedTimesMnMajorShared) {
  SomeSizes::expect_exact_products<bf16, hw::Major::mn, SourceOfA::shared>(GetParam());
  SomeSizes::expect_exact_products<fp16, hw::Major::mn, SourceOfA::shared>(GetParam());
}
TEST_P(MatrixVerbs, MnMajorSharedTimesShared) {
  DecodeSizes::expect_exact_products<bf16, hw::Major::mn, SourceOfA::shared_mn_major>(GetParam());
  DecodeSizes::expect_exact_products<fp16, hw::Major::mn, SourceOfA::shared_mn_major>(GetParam());
  DecodeSizes::expect_exact_products<bf16, hw::Major::k, SourceOfA::shared_mn_major>(GetParam());
  DecodeSizes::expect_exact_products<fp16, hw::Major::k, SourceOfA::shared_mn_major>(GetParam());
}
TEST_P(MatrixVerbs, RegistersTimesKMajorShared) {
  SomeSizes::expect_exact_products<bf16, hw::Major::k, SourceOfA::registers>(GetParam());
  SomeSizes::expect_exact_products<fp16, hw::Major::k, SourceOfA::registers>(GetParam());
}

template <hw::Operand operand, hw::Major b_major, SourceOfA source>
void expect_close_product(const machine::Mode& mode, const std::string& name) {
  const Matrices m = real_matrices(16);
  expect_close(multiply<operand, 16, b_major, source>(mode, m, hw::Accumulate::add), m, name);
}

TEST_P(MatrixVerbs, ProductsOfRealNumbersAreFp32Accurate) {
  expect_close_product<bf16, hw::Major::k, SourceOfA::shared>(GetParam(), "wgmma_ss_bf16");
  expect_close_product<fp16, hw::Major::k, SourceOfA::shared>(GetParam(), "wgmma_ss_fp16");
  expect_close_product<bf16, hw::Major::mn, SourceOfA::registers>(GetParam(), "wgmma_rs_bf16");
  expect_close_product<fp16, hw::Major::mn, SourceOfA::registers>(GetParam(), "wgmma_rs_fp16");
}

/// 8-bit operands: the tiles' 16-bit columns are two elements each.
template <int n, SourceOfA source>
void expect_exact_product_of_e4m3(const machine::Mode& mode) {
  SCOPED_TRACE("n = " + std::to_string(n));
  using Body = Multiply<e4m3, n, hw::Major::k, source>;
  constexpr int k = 2 * wgmma_k;
  std::mt19937 random(n);
  // Integers from -3 to 3, whose sums any accumulator holds.
  constexpr std::uint8_t encodings[] = {0xc4, 0xc0, 0xb8, 0x00, 0x38, 0x40, 0x44};
  const auto draw = [&](int rows, std::vector<int>& values) {
    std::vector<std::uint16_t> pairs(static_cast<std::size_t>(rows * k / 2));
    for (std::size_t i = 0; i < 2 * pairs.size(); ++i) {
      const auto choice = static_cast<int>(random() % 7);
      values.push_back(choice - 3);
      pairs[i / 2] = static_cast<std::uint16_t>(pairs[i / 2] | encodings[choice] << 8 * (i % 2));
    }
    return pairs;
  };
  std::vector<int> a, b;
  const machine::Buffer device_a(draw(wgmma_m, a)), device_b(draw(n, b));
  std::vector<float> before(wgmma_m * n), expected(wgmma_m * n);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t row = i / n * k, column = i % n * k;
    before[i] = static_cast<float>(i % 11);
    expected[i] = before[i] + static_cast<float>(std::inner_product(&a[row], &a[row] + k, &b[column], 0));
  }
  const machine::Buffer d(before);
  machine::run(mode, 1,
               Body{machine::encode(matrix_request(device_a.data(), wgmma_m, wgmma_k, wgmma_m)),
                    machine::encode(matrix_request(device_b.data(), n, wgmma_k, n)), device_a.data(),
                    d.data(), hw::Accumulate::add});
  expect_equal(d.read(), expected, n);
}

TEST_P(MatrixVerbs, ProductsOf8BitOperands) {
  expect_exact_product_of_e4m3<8, SourceOfA::shared>(GetParam());
  expect_exact_product_of_e4m3<128, SourceOfA::shared>(GetParam());
  expect_exact_product_of_e4m3<16, SourceOfA::registers>(GetParam());
  expect_exact_product_of_e4m3<256, SourceOfA::registers>(GetParam());
}

/// Integers of all sizes: their sums are exact, wrap at 32 bits, and lie in the bits of floats.
template <int n>
void expect_exact_product_of_int8(const machine::Mode& mode, hw::Accumulate first) {
  SCOPED_TRACE("n = " + std::to_string(n));
  using Body = Multiply<int8, n, hw::Major::k, SourceOfA::shared>;
  constexpr int k = 2 * wgmma_k;
  std::mt19937 random(n);
  const auto draw = [&](int rows, std::vector<int>& values) {
    std::vector<std::uint16_t> pairs(static_cast<std::size_t>(rows * k / 2));
    for (std::size_t i = 0; i < 2 * pairs.size(); ++i) {
      const std::uint32_t byte = i % 5 == 0 ? (random() % 2 == 0 ? 0x7fu : 0x80u) : random() & 0xffu;
      values.push_back(static_cast<std::int8_t>(byte));
      pairs[i / 2] = static_cast<std::uint16_t>(pairs[i / 2] | byte << 8 * (i % 2));
    }
    return pairs;
  };
  std::vector<int> a, b;
  const machine::Buffer device_a(draw(wgmma_m, a)), device_b(draw(n, b));
  std::vector<float> before(wgmma_m * n);
  std::vector<std::uint32_t> expected(wgmma_m * n);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t row = i / n * k, column = i % n * k;
    const std::uint32_t start = i % 3 == 0 ? 0x4b400000u : static_cast<std::uint32_t>(random());
    before[i] = std::bit_cast<float>(start);
    expected[i] = (first == hw::Accumulate::add ? start : 0u) +
                  static_cast<std::uint32_t>(std::inner_product(&a[row], &a[row] + k, &b[column], 0));
  }
  const machine::Buffer d(before);
  machine::run(mode, 1,
               Body{machine::encode(matrix_request(device_a.data(), wgmma_m, wgmma_k, wgmma_m)),
                    machine::encode(matrix_request(device_b.data(), n, wgmma_k, n)), device_a.data(),
                    d.data(), first});
  std::vector<std::uint32_t> result;
  for (const float sum : d.read()) result.push_back(std::bit_cast<std::uint32_t>(sum));
  expect_equal(result, expected, n);
}

TEST_P(MatrixVerbs, SumsOfInt8ProductsAreExact) {
  for (const hw::Accumulate first : {hw::Accumulate::overwrite, hw::Accumulate::add}) {
    expect_exact_product_of_int8<8>(GetParam(), first);
    expect_exact_product_of_int8<128>(GetParam(), first);
  }
}

/// Rows of pairs of e4m3 numbers, four kinds in turn: any exponents, a narrow range, subnormal numbers and
/// zeros, few that are not zero.
inline std::vector<std::uint16_t> draw_e4m3(std::mt19937& random, int rows) {
  const auto byte = [&](std::size_t kind) -> std::uint32_t {
    const std::uint32_t bits = static_cast<std::uint32_t>(random()) & 0xffu;
    const std::uint32_t sign = bits & 0x80u;
    if (kind == 0) return (bits & 0x7fu) == 0x7fu ? sign | 0x7eu : bits;
    if (kind == 1) return sign | 0x30u | (bits & 0x0fu);
    if (kind == 2) return sign | (bits & 0x0fu);
    return random() % 8 == 0 ? sign | (bits & 0x77u) : 0u;
  };
  std::vector<std::uint16_t> pairs(static_cast<std::size_t>(rows * wgmma_k));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::size_t kind = i / wgmma_k % 4;
    const std::uint32_t low = byte(kind);
    pairs[i] = static_cast<std::uint16_t>(low | byte(kind) << 8);
  }
  return pairs;
}

/// How the matrix unit adds e4m3 products: operands of all encodings, accumulators with all bits of fp32.
struct E4m3Problem {
  static constexpr int n = 16, k = 2 * wgmma_k;
  std::vector<std::uint16_t> a, b;
  std::vector<float> d = std::vector<float>(wgmma_m * n);  ///< small, large, cancelling, zero

  E4m3Problem() {
    std::mt19937 random(29);
    a = draw_e4m3(random, wgmma_m), b = draw_e4m3(random, n);
    for (std::size_t i = 0; i < d.size(); ++i) {
      const auto mantissa = static_cast<float>(static_cast<std::int32_t>(random()));
      const int exponent = static_cast<int>(random() % 40) - 55;
      d[i] = i % 5 == 0 ? 0.f : std::ldexp(mantissa, exponent);
    }
  }
};

/// One instruction's sum of the products of 32 elements.
inline float sum_of_e4m3(float accumulator, const std::uint16_t* a, const std::uint16_t* b,
                         bool whole = false) {
  const auto value = [](const std::uint16_t* pairs, int i) {
    return static_cast<float>(core::E4m3{static_cast<std::uint8_t>(pairs[i / 2] >> 8 * (i % 2))});
  };
  float x[32], y[32];
  for (int i = 0; i < 32; ++i) x[i] = value(a, i), y[i] = value(b, i);
  return add_e4m3_products(accumulator, x, y, 32, whole);
}

template <SourceOfA source>
std::vector<float> e4m3_products(const machine::Mode& mode, const E4m3Problem& problem) {
  using Body = Multiply<e4m3, E4m3Problem::n, hw::Major::k, source>;
  const machine::Buffer a(problem.a), b(problem.b);
  const machine::Buffer d(problem.d);
  machine::run(mode, 1,
               Body{machine::encode(matrix_request(a.data(), wgmma_m, wgmma_k, wgmma_m)),
                    machine::encode(matrix_request(b.data(), E4m3Problem::n, wgmma_k, E4m3Problem::n)),
                    a.data(), d.data(), hw::Accumulate::add});
  return d.read();
}

TEST_P(MatrixVerbs, SumsOfE4m3ProductsKeep13BitsBelowTheLargestExponent) {
  const E4m3Problem problem;
  constexpr int n = E4m3Problem::n;
  std::vector<float> expected = problem.d;
  for (int i = 0; i < wgmma_m * n; ++i) {
    for (int step = 0; step < wgmma_steps; ++step) {
      float& sum = expected[static_cast<std::size_t>(i)];
      sum = sum_of_e4m3(sum, &problem.a[static_cast<std::size_t>(i / n * wgmma_k + 16 * step)],
                        &problem.b[static_cast<std::size_t>(i % n * wgmma_k + 16 * step)]);
    }
  }
  const std::vector<float> shared = e4m3_products<SourceOfA::shared>(GetParam(), problem);
  const std::vector<float> registers = e4m3_products<SourceOfA::registers>(GetParam(), problem);
  expect_equal(shared, expected, n);
  expect_equal(registers, expected, n);
}

/// Two groups in flight over operands that ordinary stores wrote: the first can be read while the second
/// runs.
struct TwoGroups {
  static constexpr int threads = hw::warpgroup_size, n = 64;
  using Tile = tile::SharedTile<n, wgmma_k>;
  struct Shared {
    Tile a, b;
    hw::Barrier witness;
  };
  const std::uint16_t *a, *b;  ///< 64 x K each
  float *first, *second;       ///< products of the first half of K, and of the second

  TANDEM_DEVICE static void start(float (&d)[n / 2], const Shared& shared, int first_step) {
    TANDEM_UNROLL
    for (int i = 0; i < wgmma_steps / 2; ++i) {
      const int step = first_step + i;
      hw::wgmma_ss<bf16, n, hw::Major::k>(d, shared.a.k_major(step), shared.b.k_major(step),
                                          i == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
    }
    hw::wgmma_commit();
  }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    for (int i = static_cast<int>(hw::thread_index()); i < n * wgmma_k; i += threads) {
      const int row = i / wgmma_k, column = i % wgmma_k, place = place_in_panel(row, column % 64);
      (&shared.a.panel[column / 64][0][0])[place] = a[i];
      (&shared.b.panel[column / 64][0][0])[place] = b[i];
    }
    hw::fence_async_proxy();
    hw::sync_block();
    float early[n / 2], late[n / 2];
    hw::wgmma_fence();
    start(early, shared, 0);
    start(late, shared, wgmma_steps / 2);
    hw::wgmma_wait<1>();
    TANDEM_UNROLL
    for (int j = 0; j < n / 2; ++j) first[place_of_accumulator<n>(j)] = early[j];
    hw::compute_before_wait(early[0] * early[0], shared.witness);
    hw::wgmma_wait<0>();
    TANDEM_UNROLL
    for (int j = 0; j < n / 2; ++j) second[place_of_accumulator<n>(j)] = late[j];
  }
};

TEST_P(MatrixVerbs, GroupsCompleteInOrderOverOperandsFromOrdinaryStores) {
  constexpr int n = TwoGroups::n;
  std::mt19937 random(31);
  std::vector<float> a(n * wgmma_k), b(n * wgmma_k), first(n * n), second(n * n);
  std::vector<std::uint16_t> a_bits, b_bits;
  for (float& x : a) a_bits.push_back(bits_of<bf16>(x = static_cast<float>(random() % 9) - 4));
  for (float& x : b) b_bits.push_back(bits_of<bf16>(x = static_cast<float>(random() % 9) - 4));
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < n; ++column) {
      for (int k = 0; k < wgmma_k; ++k) {
        (k < wgmma_k / 2 ? first : second)[static_cast<std::size_t>(row * n + column)] +=
            a[static_cast<std::size_t>(row * wgmma_k + k)] *
            b[static_cast<std::size_t>(column * wgmma_k + k)];
      }
    }
  }
  const machine::Buffer device_a(a_bits), device_b(b_bits);
  const machine::Buffer early(poisoned<float>(n * n)), late(poisoned<float>(n * n));
  run(TwoGroups{device_a.data(), device_b.data(), early.data(), late.data()});
  expect_equal(early.read(), first, n);
  expect_equal(late.read(), second, n);
}

}  // namespace tandem::test
