// The vectorised exp2, on every instruction set of this machine.
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "cpu/simd_targets.h"
#include "tests/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu/exp2_test.cpp"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

void exp2_of(const float* x, std::size_t size, float* result) {
  const Floats f;
  for (std::size_t i = 0; i < size; i += lanes) hn::StoreU(exp2(hn::LoadU(f, x + i)), f, result + i);
}

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(exp2_of);

void best_exp2_of(const float* x, std::size_t size, float* result) {
  HWY_DYNAMIC_DISPATCH(exp2_of)(x, size, result);
}

}  // namespace tandem::cpu

namespace tandem::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The argument has to be a whole number of vectors: padded with zeros here.
std::vector<float> exp2_of(std::vector<float> x) {
  const std::size_t size = x.size();
  x.resize((size + 63) / 64 * 64, 0.0f);
  std::vector<float> result(x.size());
  cpu::best_exp2_of(x.data(), x.size(), result.data());
  result.resize(size);
  return result;
}

void expect_small_error() {
  std::vector<float> x;
  for (float value = -126.0f; value <= 1.0f; value += 0.00013f) x.push_back(value);
  const std::vector<float> result = exp2_of(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(result[i] - exact) / unit);
  }
  EXPECT_LE(worst, 1.2);  // 1.0 with FMA
}

TEST(Exp2, ErrorIsAboutOneUnitInTheLastPlace) { on_each_target(expect_small_error); }

TEST(Exp2, ExactAtIntegers) {
  on_each_target([] {
    for (int n = -126; n <= 0; ++n) ASSERT_EQ(exp2_of({static_cast<float>(n)})[0], std::ldexp(1.0f, n)) << n;
  });
}

TEST(Exp2, TinyResultsAreZero) {
  on_each_target([] {
    for (const float x : {-126.5f, -127.0f, -150.0f, -1e4f, -1e9f, -3e38f, -infinity}) {
      EXPECT_EQ(exp2_of({x})[0], 0.0f) << x;
    }
  });
}

TEST(Exp2, NanStaysNan) {
  on_each_target([] {
    for (const std::uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7f800001u, 0xffc12345u, 0xffffffffu}) {
      EXPECT_TRUE(std::isnan(exp2_of({std::bit_cast<float>(bits)})[0])) << bits;
    }
  });
}

}  // namespace
}  // namespace tandem::test
#endif
