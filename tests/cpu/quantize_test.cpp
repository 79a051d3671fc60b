// Quantising on the CPU against its definition, in double arithmetic.
#include "cpu/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "core/dtype.h"
#include "tests/support/quantize_case.h"

namespace tandem {
namespace {

using test::QuantizeCase;
using test::QuantizeTensors;
using test::rotated_row;

template <typename Visit>
void for_each_row(const QuantizeCase& c, Visit visit) {
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.length; ++s)
      for (std::int64_t h = 0; h < c.heads; ++h) visit(b, s, h);
}

/// How far a value that the format reaches may be from what it is rounded to; in units of the scale.
double rounding_error(const QuantizeCase& c, double value) {
  if (c.to == TANDEM_INT8) return 0.5;
  // Half a unit in the last of 4 bits, or of the smallest numbers; a second term rounds what is left.
  const double first = std::max(std::abs(value) / 16, 0x1p-10);
  const double left = std::max(first, std::abs(value) - 448);  // beyond 448 the first term is that
  return c.terms == 2 ? std::max(left / 16, 0x1p-10) : first;
}

TEST(Quantize, RoundsWhatRowsAreToTheNearestThatTheScaleAllows) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    QuantizeCase c = test::random_quantize_case(seed);
    if (seed % 4 == 0) c.dtype = TANDEM_FP32;
    QuantizeTensors t(c);
    cpu::quantize(t.problem());
    for_each_row(c, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
      const double scale = t.problem().scale.of(b, s, h, c.heads);
      const std::vector<double> row = rotated_row(t, b, s, h);
      for (std::int64_t i = 0; i < c.head_dim; ++i) {
        const double x = row[static_cast<std::size_t>(i)];
        const double most = (c.to == TANDEM_INT8 ? 127 : 448 * c.terms) * scale;
        const double expected = std::clamp(x, -most, most);
        const double lost_before =
            1e-4 * rounding_error(c, expected / scale) + 1e-6 * std::abs(expected / scale);
        const double bound = scale * (rounding_error(c, expected / scale) + lost_before);
        ASSERT_NEAR(t.quantised(b, s, h, i), expected, bound)
            << c << " at " << b << " " << s << " " << h << " " << i;
      }
    });
    EXPECT_TRUE(t.out.guards_intact() && t.scale.guards_intact());
  }
}

// The matrix changes no product, so rows are taken as they are before it.
TEST(Quantize, WritesTheProductOfEachRowAndItsHeadsKeyShift) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    QuantizeCase c = test::random_quantize_case(seed);
    if (c.by_column) continue;
    c.k_shift_heads = seed % 2 == 0 ? 1 : c.heads;
    QuantizeTensors t(c);
    cpu::quantize(t.problem());
    t.setup.hadamard = false;
    for_each_row(c, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
      const std::vector<double> row = rotated_row(t, b, s, h);
      double expected = 0, size = 0;
      for (std::int64_t i = 0; i < c.head_dim; ++i) {
        const double product = row[i] * t.k_shift.at(b, 0, h * c.k_shift_heads / c.heads, i);
        expected += product, size += std::abs(product);
      }
      ASSERT_NEAR(t.q_dot_k_shift.at(b, s, h, 0), expected, 1e-5 * size + 1e-5)
          << c << " at " << b << " " << s;
    });
    EXPECT_TRUE(t.q_dot_k_shift.guards_intact());
  }
}

TEST(Quantize, FindsTheLeastPowerOfTwoThatFitsForEveryShapeOfScales) {
  for (const test::ScaleCase scale :
       {test::ScaleCase{true, 50, 3}, {false, 0, 1}, {true, 0, 1}, {false, 128, 3}}) {
    QuantizeCase c{
        .dtype = TANDEM_FP32, .batch = 2, .length = 130, .heads = 3, .head_dim = 24, .scale = scale};
    QuantizeTensors t(c);
    cpu::quantize(t.problem());
    const core::Tensor scales = t.scale.view();
    std::vector<double> largest(
        static_cast<std::size_t>(scales.shape[0] * scales.shape[1] * scales.shape[2]));
    for_each_row(c, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
      const std::int64_t block = scale.block == 0 ? 0 : s / scale.block;
      const std::int64_t at = ((scale.each_batch ? b : 0) * scales.shape[1] + block) * scales.shape[2] +
                              (scale.heads == 1 ? 0 : h);
      for (std::int64_t i = 0; i < c.head_dim; ++i)
        largest[static_cast<std::size_t>(at)] =
            std::max(largest[static_cast<std::size_t>(at)], std::abs(t.x.at(b, s, h, i)));
    });
    const std::vector<double> found = t.scale.values();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (largest[i] == 0) {
        EXPECT_EQ(found[i], 1);
        continue;
      }
      EXPECT_EQ(std::exp2(std::ceil(std::log2(largest[i] / 448))), found[i]) << largest[i];
    }
  }
}

/// Squared errors of tokens [begin, end) of a head, rounded by 2^(i / 4) times a scale, i = 0 ... 3.
std::array<double, 4> errors_of_choices(const QuantizeTensors& t, std::int64_t b, std::int64_t h,
                                        std::array<std::int64_t, 2> tokens, double least) {
  std::array<double, 4> errors{};
  for (std::int64_t s = tokens[0]; s < tokens[1]; ++s)
    for (const double x : rotated_row(t, b, s, h))
      for (std::size_t i = 0; i < errors.size(); ++i) {
        const double scale = least * std::exp2(static_cast<double>(i) / 4);
        const auto bits = core::E4m3::from(static_cast<float>(x / scale));
        errors[i] += std::pow(static_cast<double>(static_cast<float>(bits)) * scale - x, 2);
      }
  return errors;
}

TEST(Quantize, TheBestScaleIsTheOneOfFourInAnOctaveWithTheLeastSquaredError) {
  int chosen[4] = {};
  for (const std::int64_t block : {1, 7, 45}) {
    QuantizeCase c{.dtype = TANDEM_FP32, .batch = 2, .length = 45, .heads = 3, .head_dim = 32};
    c.scale = {true, block == c.length ? 0 : block, 3};
    c.amplitude = 30, c.hadamard = true, c.best_scale = true;
    QuantizeTensors t(c), plain(c);
    plain.setup.best_scale = false;
    cpu::quantize(t.problem());
    cpu::quantize(plain.problem());
    for_each_row(c, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
      if (s % block != 0) return;  // once for each scale
      const double least = plain.scale.at(b, s / block, h, 0);
      const auto errors = errors_of_choices(t, b, h, {s, std::min(c.length, s + block)}, least);
      const double own = std::log2(t.scale.at(b, s / block, h, 0) / least) * 4;
      const auto choice = static_cast<int>(std::lround(own));
      ASSERT_TRUE(choice >= 0 && choice < 4) << c;
      EXPECT_NEAR(own, choice, 1e-5);
      EXPECT_LE(errors[static_cast<std::size_t>(choice)], 1.001 * *std::ranges::min_element(errors))
          << c << " scale " << b << " " << s / block;
      ++chosen[choice];
    });
  }
  for (const int each : chosen) EXPECT_GT(each, 20);
}

TEST(Quantize, ScaleOfIntegersMapsTheLargestMagnitudeTo127) {
  for (const float largest : {1.f, 3.7f, 1e-30f, 65504.f, 3e38f}) {
    QuantizeCase c{.dtype = TANDEM_FP32, .length = 1, .to = TANDEM_INT8};
    QuantizeTensors t(c);
    t.x.fill(0);
    t.x.set(0, 0, 0, 3, -largest);
    t.x.set(0, 0, 0, 4, largest / 3);
    cpu::quantize(t.problem());
    EXPECT_NEAR(t.scale.at(0, 0, 0, 0), largest / 127, 1e-6 * largest);
    EXPECT_EQ(t.out.at(0, 0, 0, 3), -127);
    EXPECT_EQ(t.out.at(0, 0, 0, 4), 42);
    EXPECT_EQ(t.out.at(0, 0, 0, 5), 0);
  }
}

TEST(Quantize, IntegersRoundToNearestEvenAndHaveNoNan) {
  QuantizeCase c{.dtype = TANDEM_FP32, .length = 1, .to = TANDEM_INT8, .scale_given = true};
  QuantizeTensors t(c);
  t.scale.fill(0.5f);
  const float inputs[] = {0.25f, 0.75f, -1.25f, 1e30f, -1e30f, std::numeric_limits<float>::quiet_NaN()};
  const double expected[] = {0, 2, -2, 127, -127, 0};
  for (int i = 0; i < 6; ++i) t.x.set(0, 0, 0, i, inputs[i]);
  cpu::quantize(t.problem());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(t.out.at(0, 0, 0, i), expected[i]) << inputs[i];
}

TEST(Quantize, TheSecondTermIsWhatTheFirstHasLeft) {
  QuantizeCase c{.dtype = TANDEM_FP32, .length = 1, .by_column = true, .terms = 2, .scale_given = true};
  QuantizeTensors t(c);
  t.scale.fill(0.25f);
  t.x.set(0, 0, 0, 1, 25.f);   // 100 is as near to 96 as to 104: the even one is taken
  t.x.set(0, 0, 0, 2, 150.f);  // 600 = 448 + 152, and 152 is as near to 144 as to 160
  t.x.set(0, 0, 0, 3, 1e9f);
  cpu::quantize(t.problem());
  EXPECT_EQ(t.out.at(0, 1, 0, 0), 96);
  EXPECT_EQ(t.out.at(0, 64 + 1, 0, 0), 4);
  EXPECT_EQ(t.out.at(0, 2, 0, 0), 448);
  EXPECT_EQ(t.out.at(0, 64 + 2, 0, 0), 160);
  EXPECT_EQ(t.out.at(0, 3, 0, 0) + t.out.at(0, 64 + 3, 0, 0), 896);
}

// M is orthogonal: what two rotated rows have in common is what they had.
TEST(Quantize, RotatedQueriesAndKeysHaveTheScoresThatTheyHad) {
  for (const std::int64_t d : {8, 64, 256}) {
    QuantizeCase c{.dtype = TANDEM_FP32, .length = 2, .head_dim = d, .hadamard = true, .seed = 7};
    QuantizeTensors t(c);
    const std::vector<double> q = rotated_row(t, 0, 0, 0), k = rotated_row(t, 0, 1, 0);
    double plain = 0, rotated = 0, changed = 0;
    for (std::int64_t i = 0; i < d; ++i) {
      plain += t.x.at(0, 0, 0, i) * t.x.at(0, 1, 0, i);
      rotated += q[static_cast<std::size_t>(i)] * k[static_cast<std::size_t>(i)];
      changed += core::changes_sign(7, static_cast<int>(i)) ? 1 : 0;
    }
    EXPECT_NEAR(rotated, plain, 1e-9 * static_cast<double>(d));
    EXPECT_GT(changed, 0);
    EXPECT_LT(changed, static_cast<double>(d));
  }
}

TEST(Quantize, KeysBeyondTheLastOfARowByColumnAreZero) {
  QuantizeCase c{.length = 37, .by_column = true, .terms = 2};
  QuantizeTensors t(c);
  cpu::quantize(t.problem());
  for (std::int64_t p = 32; p < 48; ++p) {
    if (core::key_of_position(p) < 37) continue;
    EXPECT_EQ(t.out.at(0, 5, 0, p), 0) << p;
    EXPECT_EQ(t.out.at(0, 64 + 5, 0, p), 0) << p;
  }
}

TEST(Quantize, NanStaysNanAndWhatIsTooLargeSaturates) {
  QuantizeCase c{.dtype = TANDEM_FP32, .length = 1, .scale_given = true};
  QuantizeTensors t(c);
  t.x.set(0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN());
  t.x.set(0, 0, 0, 1, 1e30f);
  t.x.set(0, 0, 0, 2, -std::numeric_limits<float>::infinity());
  cpu::quantize(t.problem());
  EXPECT_TRUE(std::isnan(t.out.at(0, 0, 0, 0)));
  EXPECT_EQ(t.out.at(0, 0, 0, 1), 448);
  EXPECT_EQ(t.out.at(0, 0, 0, 2), -448);
}

}  // namespace
}  // namespace tandem
