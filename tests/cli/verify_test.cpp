#include "verify.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "cases.h"
#include "element.h"

namespace tandem::cli {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

Output computed(const Call& call) {
  const std::unique_ptr<Place> place = make_place(call.backend);
  PreparedCall prepared(*place, call);
  prepared.enqueue();
  return prepared.fetch();
}

HostTensor normal(tandem_dtype dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  for (float& value : values) value = distribution(random);
  return HostTensor::from_dense(dtype, shape, Layout::bshd(), values);
}

/// A call with grouped heads, whose output has padding.
Call usual_call(tandem_dtype dtype) {
  Call call;
  call.q = normal(dtype, {2, 24, 4, 32}, 1);
  call.k = normal(dtype, {2, 40, 2, 32}, 2);
  call.v = normal(dtype, {2, 40, 2, 32}, 3);
  call.mask = Mask::causal().c_mask();
  call.o_layout = {{0, 2, 1, 3}, 8, 16};
  return call;
}

TEST(Compare, MeasuresLargestErrorAndRootMeanSquare) {
  const Error error = compare(std::vector{1.0f, 2.0f, 3.0f, 4.0f}, std::vector{1.0f, 2.0f, 3.0f, 2.0f});
  EXPECT_DOUBLE_EQ(error.max_abs, 2);
  EXPECT_DOUBLE_EQ(error.rmse, 1);
}

TEST(Compare, NaNAndMisplacedInfinityAreInfinitelyWrong) {
  EXPECT_EQ(compare(std::vector{nan}, std::vector{1.0f}).max_abs, infinity);
  EXPECT_EQ(compare(std::vector{-infinity}, std::vector{infinity}).max_abs, infinity);
  EXPECT_EQ(compare(std::vector{-infinity}, std::vector{-infinity}).max_abs, 0);
  EXPECT_EQ(compare(std::vector{1.0f}, std::vector{1.0f, 2.0f}).max_abs, infinity);
}

TEST(Compare, NaNIsRightWhereItIsExpectedAndCountsForNothing) {
  const Error error = compare(std::vector{nan, infinity, 3.0f}, std::vector{nan, infinity, 1.0f});
  EXPECT_DOUBLE_EQ(error.max_abs, 2);
  EXPECT_DOUBLE_EQ(error.rmse, 2);
  EXPECT_EQ(compare(std::vector{1.0f, 1.0f}, std::vector{nan, 1.0f}).max_abs, infinity);
  EXPECT_EQ(compare(std::vector{1.0f, 1.0f}, std::vector{nan, 1.0f}).rmse, infinity);
}

TEST(VisibleKeys, FollowTheHeader) {
  Call call;
  call.q.shape = {1, 4, 1, 8};
  call.k.shape = {1, 6, 1, 8};
  const auto keys = [&](const Mask& mask, std::int64_t query) {
    call.mask = mask.c_mask();
    const KeyRange range = visible_keys(call, query);
    return std::pair(range.begin, range.end);
  };
  EXPECT_EQ(keys(Mask::full(), 0), std::pair(int64_t{0}, int64_t{6}));
  EXPECT_EQ(keys(Mask::causal(), 0), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(keys(Mask::causal(), 3), std::pair(int64_t{0}, int64_t{6}));
  EXPECT_EQ(keys(Mask::window(1, 0), 2), std::pair(int64_t{3}, int64_t{5}));
  EXPECT_EQ(keys(Mask::window(TANDEM_UNLIMITED, INT64_MAX), 1), std::pair(int64_t{0}, int64_t{6}));
  call.k.shape[1] = 1;  // the first queries see nothing
  const KeyRange none = (call.mask = Mask::causal().c_mask(), visible_keys(call, 1));
  EXPECT_EQ(none.begin, none.end);
}

TEST(Standard, OneKeyGivesItsValueRow) {
  Call call;
  const std::vector<float> row{1, -2, 3, -4, 5, -6, 7, -8};
  call.q = HostTensor::from_dense(TANDEM_BF16, {1, 1, 1, 8}, Layout::bshd(), std::vector<float>(8, 1.0f));
  call.k = call.q;
  call.v = HostTensor::from_dense(TANDEM_BF16, {1, 1, 1, 8}, Layout::bshd(), row);
  EXPECT_EQ(run_standard(call).o, row);
}

TEST(Standard, StaysWithinItsPrecisionOfTheOracle) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    const Call call = usual_call(dtype);
    const Error error = compare(run_standard(call).o, run_oracle(call).o);
    EXPECT_LT(error.max_abs, 64 * unit_roundoff(dtype)) << name_of(dtype);
    EXPECT_GT(error.max_abs, 0) << name_of(dtype);
  }
}

TEST(Verify, AcceptsTheCpuBackend) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    const Call call = usual_call(dtype);
    EXPECT_EQ(verify(call, computed(call)).complaint, "") << described(call);
  }
}

TEST(Verify, AcceptsValuesOfAnotherHeadDim) {
  for (const std::int64_t columns : {8, 24, 48}) {
    Call call = usual_call(TANDEM_BF16);
    call.v = normal(TANDEM_BF16, {2, 40, 2, columns}, 3);
    const Output output = computed(call);
    EXPECT_EQ(output.o.shape, (Shape{2, 24, 4, columns}));
    const Verdict verdict = verify(call, output);
    EXPECT_EQ(verdict.complaint, "");
    EXPECT_GT(verdict.standard.rmse, 0);
  }
}

TEST(Verify, MeasuresEightBitsAgainstTheOriginals) {
  Call call = usual_call(TANDEM_FP32);
  const double whole = verify(call, computed(call)).error.rmse;
  call.eight_bit.emplace();
  EXPECT_GT(verify(call, computed(call)).error.rmse, 1000 * whole);
}

/// Some numbers, a standard implementation's with an error of 1e-3 each, and a result with half of it.
class Judge : public testing::Test {
 protected:
  Judge() {
    for (int i = 0; i < 1000; ++i) {
      const float exact = 1 + 0.01f * static_cast<float>(i % 7), error = i % 2 == 0 ? 1e-3f : -1e-3f;
      judged.exact.o.push_back(exact);
      judged.standard.o.push_back(exact + error);
      judged.result.o.push_back(exact + error / 2);
    }
    judged.exact.lse = judged.standard.lse = judged.result.lse = std::vector<float>(10, 3.0f);
  }
  void set_all(std::size_t i, float value) {
    for (Values* values : {&judged.exact, &judged.standard, &judged.result}) values->o[i] = value;
  }
  std::string complaint() const { return judge(judged).complaint; }

  Judged judged;
};

TEST_F(Judge, NaNAndInfinityOfTheOracleAreRight) {
  set_all(3, nan);
  set_all(4, -infinity);
  judged.exact.lse[0] = judged.standard.lse[0] = judged.result.lse[0] = nan;
  const Verdict verdict = judge(judged);
  EXPECT_EQ(verdict.complaint, "");
  EXPECT_NEAR(verdict.error.max_abs, 5e-4, 1e-6);
  EXPECT_NEAR(verdict.error.rmse, 5e-4, 1e-6);
  for (std::size_t i = 0; i < judged.exact.o.size(); ++i) set_all(i, nan);
  EXPECT_EQ(complaint(), "");
}

TEST_F(Judge, BesideNaNAWrongValueIsFound) {
  set_all(3, nan);
  judged.result.o[5] += 0.1f;
  EXPECT_NE(complaint().find("largest error"), std::string::npos);
  judged.result.o = judged.exact.o;
  for (std::size_t i = 0; i < 1000; ++i) judged.result.o[i] += 1.5e-3f;
  EXPECT_NE(complaint().find("RMSE"), std::string::npos);
}

TEST_F(Judge, BesideNaNAWrongLseIsFound) {
  judged.exact.lse[0] = judged.standard.lse[0] = judged.result.lse[0] = nan;
  judged.result.lse[1] += 0.1f;
  EXPECT_NE(complaint().find("lse"), std::string::npos);
}

TEST_F(Judge, NaNIsWrongWhereTheOracleHasANumberOrAnInfinity) {
  judged.result.o[3] = nan;
  EXPECT_NE(complaint(), "");
  judged.standard.o[3] = nan;
  EXPECT_NE(complaint(), "") << "also where the standard implementation has it";
  judged.exact.o[3] = infinity;
  EXPECT_NE(complaint(), "");
  judged.result.o[3] = -infinity;
  EXPECT_NE(complaint(), "");
}

TEST_F(Judge, ANumberIsWrongWhereTheOracleHasNaN) {
  judged.exact.o[3] = judged.standard.o[3] = nan;
  EXPECT_NE(complaint(), "");
}

TEST_F(Judge, OfAStandardBeyondItsRangeTheOtherElementsAreTheYardstick) {
  judged.standard.o[3] = nan;
  judged.standard.lse[0] = infinity;
  EXPECT_EQ(complaint(), "");
  judged.result.o[5] += 0.1f;
  EXPECT_NE(complaint().find("largest error"), std::string::npos);
  judged.result.lse[0] += 0.1f;
  EXPECT_NE(complaint().find("lse"), std::string::npos);
}

class VerifyRefuses : public testing::Test {
 protected:
  const Call call = usual_call(TANDEM_BF16);
  Output output = computed(call);
};

TEST_F(VerifyRefuses, OneWrongElement) {
  std::vector<float> values = output.o.to_dense();
  values[values.size() / 2] += 0.25f;
  output.o.assign_dense(values);
  EXPECT_NE(verify(call, output).complaint.find("largest error"), std::string::npos);
}

TEST_F(VerifyRefuses, AnErrorSpreadThinly) {
  std::vector<float> values = output.o.to_dense();
  const auto step = static_cast<float>(3 * verify(call, output).standard.rmse);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += i % 2 == 0 ? step : -step;
  output.o.assign_dense(values);
  EXPECT_NE(verify(call, output).complaint.find("RMSE"), std::string::npos);
}

TEST_F(VerifyRefuses, NaN) {
  std::vector<float> values = output.o.to_dense();
  values.back() = nan;
  output.o.assign_dense(values);
  EXPECT_NE(verify(call, output).complaint, "");
}

TEST_F(VerifyRefuses, AWrongLse) {
  std::vector<float> values = output.lse.to_dense();
  values.front() += 0.01f * std::max(1.0f, std::fabs(values.front()));
  output.lse.assign_dense(values);
  EXPECT_NE(verify(call, output).complaint.find("lse"), std::string::npos);
}

TEST_F(VerifyRefuses, AWriteBetweenTheRows) {
  const auto past_first_row = static_cast<std::size_t>(output.o.offset + output.o.shape[3]) * 2;
  output.o.storage[past_first_row] = std::byte{0};
  EXPECT_NE(verify(call, output).complaint.find("memory"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
