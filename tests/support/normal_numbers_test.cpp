#include "tests/support/normal_numbers.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace tandem::test {
namespace {

TEST(NormalNumbers, HaveTheMomentsOfNormalOnes) {
  constexpr int count = 1'000'000;
  NormalNumbers normal(1, 2.f);
  double sum = 0, squares = 0, fourth = 0, largest = 0;
  for (int i = 0; i < count; ++i) {
    const double x = normal();
    sum += x, squares += x * x, fourth += x * x * x * x, largest = std::max(largest, std::abs(x));
  }
  const double variance = squares / count;
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(variance, 4, 0.03);
  EXPECT_NEAR(fourth / count / (variance * variance), 2.85, 0.03);  // normal ones have 3
  EXPECT_GT(largest, 2 * 4);
}

TEST(NormalNumbers, AreTheirSeeds) {
  NormalNumbers first(1), again(1), other(2);
  const float x = first();
  EXPECT_EQ(x, again());
  EXPECT_NE(x, other());
}

}  // namespace
}  // namespace tandem::test
