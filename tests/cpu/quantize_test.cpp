// Quantising on the CPU against its definition, in double arithmetic.
#include "cpu/quantize.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "core/dtype.h"
#include "tests/support/quantize_case.h"

namespace tandem {
namespace {

using test::QuantizeCase;
using test::QuantizeTensors;

/// Row [b, s, h] of x, multiplied by H diag(signs) / sqrt(d) as its definition says: H[i][j] =
/// (-1)^popcount(i & j).
std::vector<double> rotated_row(const QuantizeTensors& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t d = t.setup.head_dim;
  std::vector<double> x, y(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < d; ++i) x.push_back(t.x.at(b, s, h, i));
  if (!t.setup.hadamard) return x;
  for (std::int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < d; ++j) {
      const bool minus = (std::popcount(static_cast<std::uint64_t>(i & j)) % 2 != 0) !=
                         core::changes_sign(t.setup.seed, static_cast<int>(j));
      sum += minus ? -x[static_cast<std::size_t>(j)] : x[static_cast<std::size_t>(j)];
    }
    y[static_cast<std::size_t>(i)] = sum / std::sqrt(static_cast<double>(d));
  }
  return y;
}

template <typename Visit>
void for_each_row(const QuantizeCase& c, Visit visit) {
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.length; ++s)
      for (std::int64_t h = 0; h < c.heads; ++h) visit(b, s, h);
}

TEST(Quantize, RoundsWhatRowsAreToTheNearestThatTheScaleAllows) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    QuantizeCase c = test::random_quantize_case(seed);
    if (seed % 4 == 0) c.dtype = TANDEM_FP32;
    QuantizeTensors t(c);
    cpu::quantize(t.problem());
    for_each_row(c, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
      const double scale = t.problem().scale.of(b, s, h, c.heads);
      const std::vector<double> row = rotated_row(t, b, s, h);
      for (std::int64_t i = 0; i < c.head_dim; ++i) {
        const double x = row[static_cast<std::size_t>(i)], most = 448 * scale;
        const double expected = std::clamp(x, -most, most);
        // Half a unit in the last of 4 bits, or of the smallest numbers, and what fp32 loses before.
        const double bound = std::max(std::abs(expected) / 16, 0x1p-10 * scale) * 1.0001;
        ASSERT_NEAR(t.quantised(b, s, h, i), expected, bound)
            << c << " at " << b << " " << s << " " << h << " " << i;
      }
    });
    EXPECT_TRUE(t.out.guards_intact() && t.scale.guards_intact());
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
  QuantizeCase c{.length = 37, .by_column = true};
  QuantizeTensors t(c);
  cpu::quantize(t.problem());
  for (std::int64_t p = 32; p < 48; ++p) {
    if (core::key_of_position(p) < 37) continue;
    EXPECT_EQ(t.out.at(0, 5, 0, p), 0) << p;
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
