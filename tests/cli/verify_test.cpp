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
