// Random steps cover what they are to cover; the verdict on a step sees every kind of mistake.
#include "decode_verify.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "decode_cases.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

DecodeOutput computed(const DecodeCall& call) {
  const std::unique_ptr<Place> place = make_place(call.backend);
  PreparedDecode prepared(*place, call);
  prepared.enqueue();
  return prepared.fetch();
}

TEST(RandomStep, FollowsFromItsSeed) {
  const DecodeCall a = random_step(7, TANDEM_BACKEND_CPU), b = random_step(7, TANDEM_BACKEND_CPU);
  EXPECT_EQ(described(a), described(b));
  EXPECT_EQ(a.k_cache.storage, b.k_cache.storage);
  EXPECT_NE(described(a), described(random_step(8, TANDEM_BACKEND_CPU)));
}

TEST(RandomStep, DrawsEverything) {
  int paged = 0, appended = 0, indexed = 0, rotated = 0, empty = 0, split = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const DecodeCall call = random_step(seed, TANDEM_BACKEND_HOPPER);
    EXPECT_NE(call.q.dtype, TANDEM_FP32);
    paged += !call.page_table.empty();
    appended += call.new_len() > 0;
    indexed += !call.batch_index.empty();
    rotated += call.cos.shape[2] > 0;
    empty += std::ranges::count(call.lengths, 0) > 0;
    split += call.split_size > 0;
  }
  for (const int count : {paged, appended, indexed, rotated, empty, split}) {
    EXPECT_GT(count, 5);
    EXPECT_LT(count, 55);
  }
}

/// A step that appends.
class VerifyStep : public testing::Test {
 protected:
  static DecodeCall appending() {
    for (std::uint64_t seed = 0;; ++seed) {
      DecodeCall call = random_step(seed, TANDEM_BACKEND_CPU);
      if (call.new_len() > 0 && call.want_lse && call.cos.shape[2] > 0 && call.q.dtype == TANDEM_BF16)
        return call;
    }
  }
  void expect_complaint(const char* words) { EXPECT_THAT(verify(call, output).complaint, HasSubstr(words)); }

  const DecodeCall call = appending();
  DecodeOutput output = computed(call);
};

TEST_F(VerifyStep, AcceptsTheCpuBackend) { EXPECT_EQ(verify(call, output).complaint, ""); }

TEST_F(VerifyStep, RefusesAWrongElement) {
  std::vector<float> values = output.o.to_dense();
  values.back() += 0.25f;
  output.o.assign_dense(values);
  expect_complaint("largest error");
}

TEST_F(VerifyStep, RefusesAWrongLse) {
  std::vector<float> values = output.lse.to_dense();
  values.back() += 0.5f;
  output.lse.assign_dense(values);
  expect_complaint("lse is off");
}

TEST_F(VerifyStep, RefusesATokenThatWasNotAppended) {
  const auto [page, row] = call.place(0, call.keys(0) - 1);
  std::ranges::copy(call.k_cache.row(page, row, 0), output.k_cache.row(page, row, 0).begin());
  expect_complaint("is wrong in the cache");
}

TEST_F(VerifyStep, RefusesAWriteElsewhereInTheCache) {
  output.v_cache.storage.front() ^= std::byte{1};
  expect_complaint("the cache was written");
}

TEST_F(VerifyStep, RefusesAWriteBetweenTheRows) {
  output.o.storage.front() = std::byte{0};
  expect_complaint("rows of o");
}

}  // namespace
}  // namespace tandem::cli
