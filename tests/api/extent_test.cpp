// Overlap, against counting addresses.
#include "api/extent.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <sstream>
#include <vector>

#include "core/dtype.h"

namespace tandem::test {
namespace {

using core::Tensor;

/// Offsets of all elements from the data pointer.
std::vector<std::int64_t> offsets_of(const Tensor& t) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t s = 0; s < t.shape[1]; ++s)
      for (std::int64_t h = 0; h < t.shape[2]; ++h)
        for (std::int64_t d = 0; d < t.shape[3]; ++d)
          offsets.push_back(b * t.stride[0] + s * t.stride[1] + h * t.stride[2] + d * t.stride[3]);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

class RandomTensors : public ::testing::Test {
 protected:
  RandomTensors() : seed_(std::random_device()()), random_(seed_) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Tensor tensor() {
    Tensor t{nullptr, TANDEM_FP32, {}, {}};
    for (int i = 0; i < 4; ++i) {
      t.shape[i] = between(1, 4);
      t.stride[i] = t.shape[i] == 1 ? 0 : i == 3 ? 1 : between(-24, 24);
    }
    return t;
  }
  std::string describe(const Tensor& t) const {
    std::ostringstream text;
    text << "seed " << seed_ << ", shape and stride";
    for (int i = 0; i < 4; ++i) text << " " << t.shape[i] << ":" << t.stride[i];
    return text.str();
  }

  std::random_device::result_type seed_;
  std::mt19937 random_;
};

TEST_F(RandomTensors, ExtentIsFromTheFirstByteToTheLast) {
  for (int i = 0; i < 2000; ++i) {
    const Tensor t = tensor();
    const auto offsets = offsets_of(t);
    api::Extent extent{};
    ASSERT_TRUE(api::extent_of(t, &extent));
    ASSERT_EQ(extent.low, offsets.front() * 4) << describe(t);
    ASSERT_EQ(extent.high, offsets.back() * 4 + 4) << describe(t);
  }
}

TEST_F(RandomTensors, SelfOverlapIsNeverClaimedWhereThereIsNone) {
  int claimed = 0, present = 0;
  for (int i = 0; i < 5000; ++i) {
    const Tensor t = tensor();
    const auto offsets = offsets_of(t);
    const bool truth = std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end();
    const bool claim = api::overlaps_itself(t);
    ASSERT_TRUE(truth || !claim) << describe(t);
    claimed += claim, present += truth;
  }
  EXPECT_GT(2 * claimed, present) << "and most of it is found";
}

TEST_F(RandomTensors, OverlapOfTwoIsNeverClaimedWhereThereIsNone) {
  int claimed = 0;
  std::vector<float> memory(4000);
  for (int i = 0; i < 5000; ++i) {
    Tensor a = tensor(), b = tensor();
    const std::int64_t start_a = 1000, start_b = 1000 + between(-40, 40);
    a.data = &memory[static_cast<std::size_t>(start_a)];
    b.data = &memory[static_cast<std::size_t>(start_b)];
    std::vector<std::int64_t> in_a = offsets_of(a), in_b = offsets_of(b), both;
    for (std::int64_t& offset : in_b) offset += start_b - start_a;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(both));
    const bool claim = api::overlap(a, b);
    ASSERT_TRUE(!both.empty() || !claim)
        << describe(a) << " and " << describe(b) << " from " << start_b - start_a;
    claimed += claim;
  }
  EXPECT_GT(claimed, 0);
}

TEST(Extent, OfContiguousTensorsFindsEveryOverlap) {
  std::vector<float> memory(400);
  const auto at = [&](std::size_t start) {
    return Tensor{&memory[start], TANDEM_FP32, {2, 3, 2, 8}, {48, 16, 8, 1}};
  };
  for (std::size_t start = 0; start < 300; ++start)
    EXPECT_EQ(api::overlap(at(100), at(start)), start > 100 - 96 && start < 100 + 96) << start;
}

}  // namespace
}  // namespace tandem::test
