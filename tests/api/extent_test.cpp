// Overlap, against counting addresses.
#include "api/extent.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <random>
#include <sstream>
#include <vector>

#include "core/tensor_list.h"

namespace tandem::test {
namespace {

using core::Region;
using core::Tensor;

/// Offsets of all elements from the data pointer.
std::vector<std::int64_t> offsets_of(const Region& r) {
  std::vector<std::int64_t> offsets = {0};
  for (int i = 0; i < Region::dimensions; ++i) {
    std::vector<std::int64_t> with_this;
    for (const std::int64_t offset : offsets)
      for (std::int64_t index = 0; index < r.shape[i]; ++index)
        with_this.push_back(offset + index * r.stride[i]);
    offsets = with_this;
  }
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

class RandomRegions : public ::testing::Test {
 protected:
  RandomRegions() : seed_(std::random_device()()), random_(seed_) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Region region() {
    Region r{nullptr, {}, {}, sizeof(float)};
    for (int i = 0; i < Region::dimensions; ++i) {
      r.shape[i] = i == 0 && between(0, 1) == 0 ? 1 : between(1, i == 0 ? 3 : 4);
      r.stride[i] = r.shape[i] == 1 ? 0 : i == Region::dimensions - 1 ? 1 : between(-24, 24);
    }
    return r;
  }
  std::string describe(const Region& r) const {
    std::ostringstream text;
    text << "seed " << seed_ << ", shape and stride";
    for (int i = 0; i < Region::dimensions; ++i) text << " " << r.shape[i] << ":" << r.stride[i];
    return text.str();
  }

  std::random_device::result_type seed_;
  std::mt19937 random_;
};

TEST_F(RandomRegions, ExtentIsFromTheFirstByteToTheLast) {
  for (int i = 0; i < 2000; ++i) {
    const Region t = region();
    const auto offsets = offsets_of(t);
    api::Extent extent{};
    ASSERT_TRUE(api::extent_of(t, &extent));
    ASSERT_EQ(extent.low, offsets.front() * 4) << describe(t);
    ASSERT_EQ(extent.high, offsets.back() * 4 + 4) << describe(t);
  }
}

TEST_F(RandomRegions, SelfOverlapIsFoundWhereThereIsOneAndOnlyThere) {
  for (int i = 0; i < 20000; ++i) {
    const Region t = region();
    const auto offsets = offsets_of(t);
    const bool truth = std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end();
    ASSERT_EQ(api::overlaps_itself(t), truth) << describe(t);
  }
}

TEST_F(RandomRegions, OverlapOfTwoIsFoundWhereThereIsOneAndOnlyThere) {
  std::vector<float> memory(4000);
  for (int i = 0; i < 20000; ++i) {
    Region a = region(), b = region();
    const std::int64_t start_a = 1000, start_b = 1000 + between(-40, 40);
    a.data = &memory[static_cast<std::size_t>(start_a)];
    b.data = &memory[static_cast<std::size_t>(start_b)];
    std::vector<std::int64_t> in_a = offsets_of(a), in_b = offsets_of(b), both;
    for (std::int64_t& offset : in_b) offset += start_b - start_a;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(both));
    ASSERT_EQ(api::overlap(a, b), !both.empty())
        << describe(a) << " and " << describe(b) << " from " << start_b - start_a;
  }
}

TEST(Extent, OfTensorsThatShareSomeBytesOfAnElement) {
  std::vector<std::uint16_t> memory(400);
  const Tensor wide{&memory[100], TANDEM_FP32, {1, 4, 1, 1}, {0, 8, 0, 1}};  // a float in every 16 halves
  for (std::size_t start = 80; start < 120; ++start) {
    const Tensor halves{&memory[start], TANDEM_BF16, {1, 3, 1, 1}, {0, 16, 0, 1}};
    const std::size_t within = (start + 16 - 100 % 16) % 16;
    EXPECT_EQ(api::overlap(Region::of(wide), Region::of(halves)), within < 2) << start;
  }
}

TEST(Extent, OfLargeTensorsTakesNoTimeWorthMentioning) {
  std::vector<float> memory(8);
  const std::int64_t rows = 1'000'003;
  const Tensor a{memory.data(), TANDEM_FP32, {100, rows, 64, 4}, {rows * 997, 1009, 16, 1}};
  Tensor b = a;
  b.data = memory.data() + 4;
  b.stride[1] = 1013;
  const auto start = std::chrono::steady_clock::now();
  api::overlap(Region::of(a), Region::of(b));
  api::overlaps_itself(Region::of(a));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(Extent, OfContiguousTensorsFindsEveryOverlap) {
  std::vector<float> memory(400);
  const auto at = [&](std::size_t start) {
    return Tensor{&memory[start], TANDEM_FP32, {2, 3, 2, 8}, {48, 16, 8, 1}};
  };
  for (std::size_t start = 0; start < 300; ++start)
    EXPECT_EQ(api::overlap(Region::of(at(100)), Region::of(at(start))), start > 100 - 96 && start < 100 + 96)
        << start;
}

}  // namespace
}  // namespace tandem::test
