#include "tests/support/compare.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/decode_case.h"
#include "tests/support/forward_case.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {
namespace {

using Values = std::vector<double>;

/// A reference, and the same with noise of a given deviation.
struct Noisy {
  Values reference;

  Noisy() : reference(10000) {
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    for (double& v : reference) v = normal(random);
  }
  Values with(double deviation, unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, deviation);
    Values values = reference;
    for (double& v : values) v += normal(random);
    return values;
  }
};

TEST(Compare, AcceptsErrorsLikeTheStandards) {
  const Noisy noisy;
  EXPECT_TRUE(compare(noisy.with(1e-3, 2), noisy.with(1e-3, 3), noisy.reference));
  EXPECT_TRUE(compare(noisy.reference, noisy.with(1e-3, 3), noisy.reference));
}

TEST(Compare, RejectsALargerRmse) {
  const Noisy noisy;
  const Comparison c = compare(noisy.with(1.2e-3, 2), noisy.with(1e-3, 3), noisy.reference);
  EXPECT_FALSE(c);
  EXPECT_NE(c.failure.find("RMSE"), std::string::npos) << c;
}

TEST(Compare, RowsWhoseErrorsGoTogetherAreFewResults) {
  const Noisy noisy;  // as two rows: the chance that counts is that of two results
  const Values result = noisy.with(2e-3, 2), standard = noisy.with(1e-3, 3);
  EXPECT_FALSE(compare(result, standard, noisy.reference, {.max_factor = 9}));
  EXPECT_TRUE(compare(result, standard, noisy.reference, {.max_factor = 9, .alike = 5000}));
  EXPECT_FALSE(compare(result, standard, noisy.reference, {.max_factor = 9, .alike = 50}));
}

TEST(Compare, NoiseOfOneResultMayBeSeveralTimesItsDeviation) {
  const Values reference{5}, exact{5};
  EXPECT_TRUE(compare(Values{5 + 1.5e-3}, exact, reference, {.noise = 4e-4}));
  EXPECT_FALSE(compare(Values{5 + 1.8e-3}, exact, reference, {.noise = 4e-4}));
}

TEST(Compare, TheLargestOfFewErrorsIsGrantedWhatTheirRmseIs) {
  const Values reference{1, 1}, standard{1 + 1e-3, 1 - 1e-3};
  EXPECT_TRUE(compare(Values{1 + 3.2e-3, 1}, standard, reference));
  EXPECT_FALSE(compare(Values{1 + 3.6e-3, 1}, standard, reference));
}

TEST(Compare, AStandardThatChanceRoundsWellCountsAsRoundedByHalfAUnit) {
  Values reference(100, 0.75), standard = reference, result = reference;
  for (std::size_t i = 0; i < reference.size(); ++i)
    standard[i] += 1e-3, result[i] += i % 3 == 0 ? 1.4e-3 : 0;  // chance
  result[0] = 0.75 + 3.8e-3;                                    // nearly two times half a unit of bf16
  EXPECT_FALSE(compare(result, standard, reference));
  EXPECT_FALSE(compare(result, standard, reference, {.rounded_to = TANDEM_FP16}));
  EXPECT_TRUE(compare(result, standard, reference, {.rounded_to = TANDEM_BF16}));
  result[0] = 0.75 + 4e-3;
  EXPECT_FALSE(compare(result, standard, reference, {.rounded_to = TANDEM_BF16}));
}

/// Rows of one key, whose values e4m3 holds, times factors near 1 that a row has for itself, as integer
/// scores leave them; rounded to fp16.
Comparison compare_moved_rows(std::int64_t rows, double largest_move, unsigned seed) {
  ForwardCase c;
  c.dtype = TANDEM_INT8, c.eight_bit.output = TANDEM_FP16, c.head_dim = 64;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> move(-largest_move, largest_move);
  std::normal_distribution<float> normal;
  HostTensor values(TANDEM_E4M3, {1, 1, 1, 64}), result(TANDEM_FP16, {1, rows, 1, 64});
  for (std::int64_t column = 0; column < 64; ++column) values.set(0, 0, 0, column, normal(random));
  Values reference;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double factor = std::exp2(move(random));
    for (std::int64_t column = 0; column < 64; ++column) {
      reference.push_back(values.at(0, 0, 0, column));
      result.set(0, row, 0, column, static_cast<float>(factor * reference.back()));
    }
  }
  return compare(result.values(), reference, reference, allowance_of(c));
}

TEST(Compare, RowsOfOneKeyMayBeMovedByWhatIntegerScoresLeave) {
  for (const std::int64_t rows : {1, 2, 40, 720})
    for (unsigned seed = 1; seed <= 200; ++seed) {
      EXPECT_TRUE(compare_moved_rows(rows, 0x1p-10, seed)) << rows << " rows, seed " << seed;
    }
  for (unsigned seed = 1; seed <= 200; ++seed) EXPECT_FALSE(compare_moved_rows(720, 0x1p-9, seed)) << seed;
}

/// Two rows of 63 and 128 keys with scales of their own, whose probabilities are rounded to bf16 ahead of the
/// scale, as the standard does, or behind it, `error` times; results are rounded too.
Comparison compare_token_scales(unsigned seed, double error) {
  DecodeCase c;
  c.head_dim = 256, c.eight_bit.on = c.eight_bit.per_token = true;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  HostTensor rounded(TANDEM_BF16, {1, 1, 1, 1});
  const auto round = [&](double x) {
    rounded.set(0, 0, 0, 0, static_cast<float>(x));
    return rounded.at(0, 0, 0, 0);
  };
  Values reference, standard, result;
  for (const int keys : {63, 128}) {
    Values ahead(256), behind(256), exact(256);
    double sum = 0;
    for (int key = 0; key < keys; ++key) {
      const double p = std::exp(normal(random)), scale = std::exp2(normal(random));
      sum += p;
      for (std::size_t i = 0; i < 256; ++i) {
        const double v = normal(random);
        exact[i] += p * scale * v, ahead[i] += round(p) * scale * v, behind[i] += round(p * scale) * v;
      }
    }
    for (std::size_t i = 0; i < 256; ++i) {
      reference.push_back(exact[i] / sum), standard.push_back(round(ahead[i] / sum));
      result.push_back(round((exact[i] + error * (behind[i] - exact[i])) / sum));
    }
  }
  return compare(result, standard, reference, allowance_of(c));
}

TEST(Compare, RoundingOfFewProbabilitiesMovesWholeRows) {
  int far = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    EXPECT_TRUE(compare_token_scales(seed, 1)) << seed << ": " << compare_token_scales(seed, 1);
    far += compare_token_scales(seed, 8) ? 0 : 1;
  }
  EXPECT_GT(far, 95);
}

TEST(Compare, RejectsOneFarElementAndNamesIt) {
  const Noisy noisy;
  Values result = noisy.with(1e-3, 2);
  result[1234] = noisy.reference[1234] + 0.02;
  const Comparison c = compare(result, noisy.with(1e-3, 3), noisy.reference);
  EXPECT_FALSE(c);
  EXPECT_NE(c.failure.find("1234"), std::string::npos) << c;
}

TEST(Compare, NanAndInfinityHaveToStandWhereTheReferenceHasThem) {
  const double nan = NAN, infinity = std::numeric_limits<double>::infinity();
  const Values reference = {1, nan, infinity, -infinity};
  EXPECT_TRUE(compare(reference, reference, reference));
  EXPECT_FALSE(compare(Values{nan, nan, infinity, -infinity}, reference, reference));
  EXPECT_FALSE(compare(Values{1, 0, infinity, -infinity}, reference, reference));
  EXPECT_FALSE(compare(Values{1, nan, -infinity, -infinity}, reference, reference));
  EXPECT_FALSE(compare(Values{1, nan, infinity, -1e300}, reference, reference));
  EXPECT_FALSE(compare(Values{1, nan, infinity}, reference, reference));
}

TEST(HostTensor, KeepsItsElementsApartFromItsGuards) {
  Random random(7);
  for (int repeat = 0; repeat < 50; ++repeat) {
    HostTensor tensor(TANDEM_BF16, {2, 3, 2, 8}, random_layout(random));
    EXPECT_TRUE(tensor.untouched());
    tensor.fill_normal(1);
    EXPECT_TRUE(tensor.guards_intact());
    EXPECT_FALSE(tensor.untouched());
    for (const double v : tensor.values()) ASSERT_TRUE(std::isfinite(v));
    tensor.set(1, 2, 1, 7, 0.5f);
    EXPECT_EQ(tensor.at(1, 2, 1, 7), 0.5);
    EXPECT_EQ(tensor.values().back(), 0.5);
  }
}

TEST(HostTensor, SeesAWriteBesideARow) {
  for (const int at : {-1, 8}) {
    HostTensor tensor(TANDEM_BF16, {2, 3, 2, 8}, Layout{.row_gap = 1});
    static_cast<std::uint16_t*>(tensor.view().data)[at] = 0;
    EXPECT_FALSE(tensor.guards_intact()) << at;
  }
}

}  // namespace
}  // namespace tandem::test
