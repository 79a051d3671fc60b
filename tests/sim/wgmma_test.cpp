// WGMMA of the software Hopper against plain code: descriptors, fragments, operand types, accumulation.
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "hw/hw.h"
#include "hw/sim/machine.h"

namespace tandem {
namespace {

using hw::Accumulate;
using hw::Major;
using hw::MatrixDescriptor;
using hw::Operand;
using hw::Swizzle;
using hw::sim::LaunchConfig;
using hw::sim::Policy;
using hw::sim::Report;

constexpr int steps = 6;  // K = 96: more than one 64-column panel
constexpr int k_total = 16 * steps;

/// A is 64 x 96 in two K-major panels; B is n x 96 K-major in two panels, or 96 x n MN-major in panels of 64.
struct Shared {
  alignas(1024) std::uint16_t a[2][64][64];
  alignas(1024) std::uint16_t b[2 * 256 * 64];
};

/// Element (row, column) of a 64-column panel with the 128-byte swizzle.
std::size_t in_panel(std::size_t row, std::size_t column) {
  return row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

struct Problem {
  std::vector<float> a, b, d;  // 64 x k, k x n, 64 x n
};

template <Operand operand>
std::uint16_t narrow(float value) {
  return static_cast<std::uint16_t>(hw::pack<operand>(value, 0.f));
}

template <Operand operand, int n>
Problem make_problem(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{std::vector<float>(64 * k_total), std::vector<float>(k_total * n), std::vector<float>(64 * n)};
  const auto rounded = [&] {
    const std::uint16_t bits = narrow<operand>(normal(random));
    return operand == Operand::bf16 ? static_cast<float>(core::Bf16{bits})
                                    : static_cast<float>(core::Fp16{bits});
  };
  for (float& x : p.a) x = rounded();
  for (float& x : p.b) x = rounded();
  for (float& x : p.d) x = normal(random);
  return p;
}

/// What the whole warpgroup does: operands to shared memory, a chain of WGMMAs, the results to `out`.
template <Operand operand, int n, Major major, bool in_registers>
void kernel(const Problem& p, Accumulate first, std::vector<float>& out) {
  auto& shared = hw::shared_memory<Shared>();
  const int t = static_cast<int>(hw::thread_index()), row = 16 * (t / 32) + t % 32 / 4, column = 2 * (t % 4);
  for (int i = t; i < 64 * k_total; i += 128) {
    const int r = i / k_total, k = i % k_total;
    (&shared.a[k / 64][0][0])[in_panel(r, k % 64)] = narrow<operand>(p.a[i]);
  }
  for (int i = t; i < k_total * n; i += 128) {
    const int k = i / n, c = i % n;
    const std::size_t at = major == Major::k ? k / 64 * (n * 64) + in_panel(c, k % 64)
                                             : c / 64 * (k_total * 64) + in_panel(k, c % 64);
    shared.b[at] = narrow<operand>(p.b[i]);
  }
  float d[n / 2];
  for (int j = 0; j < n / 2; ++j) d[j] = p.d[(row + 8 * (j / 2 % 2)) * n + j / 4 * 8 + column + j % 2];
  std::uint32_t fragment[steps][4];
  for (int step = 0; step < steps; ++step) {
    for (int r = 0; r < 4; ++r) {
      const float* pair = &p.a[(row + 8 * (r % 2)) * k_total + 16 * step + 8 * (r / 2) + column];
      fragment[step][r] = hw::pack<operand>(pair[0], pair[1]);
    }
  }
  hw::fence_async_proxy();
  hw::sync_block();
  const auto a0 = MatrixDescriptor::make(hw::shared_address(shared.a), 0, 1024, Swizzle::bytes128);
  const auto b0 =
      MatrixDescriptor::make(hw::shared_address(shared.b), k_total * 128, 1024, Swizzle::bytes128);
  hw::wgmma_fence();
  for (int step = 0; step < steps; ++step) {
    const Accumulate accumulate = step == 0 ? first : Accumulate::add;
    const auto a = a0.advanced(step / 4 * 64 * 128 + step % 4 * 32);
    const auto b = b0.advanced(major == Major::k ? step / 4 * n * 128 + step % 4 * 32 : step * 16 * 128);
    if constexpr (in_registers) {
      hw::wgmma_rs<operand, n, major>(d, fragment[step], b, accumulate);
    } else {
      hw::wgmma_ss<operand, n, major>(d, a, b, accumulate);
    }
  }
  hw::wgmma_commit();
  hw::wgmma_wait<0>();
  for (int j = 0; j < n / 2; ++j) out[(row + 8 * (j / 2 % 2)) * n + j / 4 * 8 + column + j % 2] = d[j];
}

template <Operand operand, int n, Major major, bool in_registers>
void check(Policy policy, Accumulate first) {
  const Problem p = make_problem<operand, n>(n + static_cast<int>(major));
  std::vector<float> out(64 * n, NAN);
  LaunchConfig config;
  config.shared_bytes = sizeof(Shared);
  config.policy = policy;
  const Report report =
      hw::sim::launch(config, [&] { kernel<operand, n, major, in_registers>(p, first, out); });
  ASSERT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(report.statistics.products, steps);
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < n; ++c) {
      double sum = first == Accumulate::add ? p.d[r * n + c] : 0, magnitude = std::abs(sum);
      for (int k = 0; k < k_total; ++k) {
        const double product = static_cast<double>(p.a[r * k_total + k]) * p.b[k * n + c];
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(out[r * n + c], sum, magnitude * 1e-6) << "row " << r << " column " << c;
    }
  }
}

template <Operand operand, int n>
void check_forms(Policy policy) {
  for (Accumulate first : {Accumulate::overwrite, Accumulate::add}) {
    check<operand, n, Major::k, false>(policy, first);
    check<operand, n, Major::mn, false>(policy, first);
    check<operand, n, Major::k, true>(policy, first);
    check<operand, n, Major::mn, true>(policy, first);
  }
}

class Wgmma : public testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Policies, Wgmma, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(Wgmma, MultipliesBf16InEveryForm) {
  check_forms<Operand::bf16, 8>(GetParam());
  check_forms<Operand::bf16, 64>(GetParam());
  check_forms<Operand::bf16, 80>(GetParam());
  check_forms<Operand::bf16, 176>(GetParam());
  check_forms<Operand::bf16, 256>(GetParam());
}

TEST_P(Wgmma, MultipliesFp16InEveryForm) {
  check_forms<Operand::fp16, 24>(GetParam());
  check_forms<Operand::fp16, 128>(GetParam());
  check_forms<Operand::fp16, 192>(GetParam());
}

}  // namespace
}  // namespace tandem
