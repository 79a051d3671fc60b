// 8-bit elements: the order of transposed values, whose scale is whose, and how scales are found.
#include "core/quantised.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "core/quantize_problem.h"

namespace tandem::core {
namespace {

TEST(Quantised, KeysOfTransposedValuesAreInTheOrderOfProbabilities) {
  static constexpr int order[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (int position = 0; position < 160; ++position) {
    const int key = position / 16 * 16 + order[position % 16];
    EXPECT_EQ(key_of_position(position), key);
    EXPECT_EQ(position_of_key(key), position);
  }
  EXPECT_EQ(std::size(order), static_cast<std::size_t>(key_group));
}

TEST(Quantised, AScaleIsOfABlockOfTokensAndOfHeadsThatShareIt) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Scales scales{{values.data(), TANDEM_FP32, {2, 3, 4, 1}, {500, 50, 5, 1}}, 128};
  for (const std::int64_t heads : {4, 8, 12})
    for (std::int64_t head = 0; head < heads; ++head)
      for (const std::int64_t token : {0, 127, 128, 255, 256, 300}) {
        const std::int64_t own_head = head / (heads / 4);
        EXPECT_EQ(scales.of(1, token, head, heads),
                  static_cast<float>(500 + token / 128 * 50 + own_head * 5));
        EXPECT_EQ(scales.of(0, token, head, heads), static_cast<float>(token / 128 * 50 + own_head * 5));
      }
  EXPECT_EQ((Scales{{}, 128}.of(1, 200, 3, 4)), 1);
}

TEST(Quantised, AScaleOfACacheIsOfItsEntryRowAndHead) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const tandem_tensor scales{values.data(), TANDEM_FP32, {4, 8, 3, 1}, {200, 20, 2, 1}};
  EXPECT_EQ(*CacheScales::at(scales, 3, 7, 2), 744);
  EXPECT_EQ(CacheScales::of(scales, 3, 2), 604);
  EXPECT_EQ(CacheScales::of({}, 3, 2), 1);
}

/// By the words: the least power of two that brings `largest` to 448 or less, in range.
float plain_scale(double largest) {
  double scale = std::ldexp(1.0, -119);
  while (largest / scale > 448 && scale < std::ldexp(1.0, 126)) scale *= 2;
  return static_cast<float>(scale);
}

TEST(Quantised, AScaleIsTheLeastPowerOfTwoThatBringsTheLargestTo448) {
  EXPECT_EQ(scale_for(0), 1);
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const float tie = std::ldexp(448.f / 512, exponent);  // 448 times a power of two
    for (const float largest : {tie, std::nextafter(tie, 0.f), std::ldexp(1.f, exponent),
                                std::ldexp(1.3f, exponent), std::ldexp(1.99f, exponent)})
      EXPECT_EQ(scale_for(largest), plain_scale(largest)) << largest;
    // A product with 1 / 448 is rounded: two neighbours above it count as 448.
    const float above = std::nextafter(std::nextafter(std::nextafter(tie, HUGE_VALF), HUGE_VALF), HUGE_VALF);
    if (std::isfinite(above)) {
      EXPECT_EQ(scale_for(above), plain_scale(above)) << above;
    }
  }
  for (int exponent = -119; exponent <= 126; ++exponent)
    EXPECT_EQ(inverse_of(std::ldexp(1.f, exponent)), std::ldexp(1.f, -exponent)) << exponent;
}

TEST(Quantised, AScaleBringsTheLargestToAnAmplitudeOrToNoLessThanHalf) {
  for (const float amplitude : {1.f, 1.125f, 15.f, 22.f, 30.f, 240.f, 416.f})
    for (const float largest : {1e-20f, 0.7f, 1.f, amplitude, 3.3f * amplitude, 1e20f}) {
      const float scaled = largest / scale_for(largest, amplitude);
      EXPECT_LE(scaled, amplitude) << largest;
      EXPECT_GT(scaled, amplitude / 2) << largest;
    }
}

TEST(Quantised, NumbersAreRoundedDownToTheNextOfE4m3) {
  for (int bits = 0x08; bits < 0x7e; ++bits) {
    const auto own = static_cast<float>(E4m3{static_cast<std::uint8_t>(bits)}),
               next = static_cast<float>(E4m3{static_cast<std::uint8_t>(bits + 1)});
    for (const float x : {own, std::nextafter(own, next), (own + next) / 2, std::nextafter(next, own)})
      EXPECT_EQ(rounded_down_to_e4m3(x), own) << x;
  }
}

TEST(Quantised, Fp16HoldsScoresUpToTheSquareOfTheAmplitudeTimesTheHeadDim) {
  const auto fits = [](float amplitude, std::int64_t head_dim) {
    Quantisation own{};
    own.amplitude = amplitude;
    return own.scores_fit_fp16(head_dim);
  };
  EXPECT_FALSE(fits(0, 64)) << "not known";
  for (auto [amplitude, head_dim] : {std::pair{30.f, 64}, {22.f, 128}, {15.f, 256}}) {
    EXPECT_TRUE(fits(amplitude, head_dim));
    EXPECT_FALSE(fits(amplitude * 17 / 15, head_dim));
  }
}

TEST(Quantised, AScaleOfInt8BringsTheLargestTo127) {
  EXPECT_EQ(int8_scale_for(0), 1);
  EXPECT_EQ(int8_scale_for(127), 1);
  for (const float largest : {1e-30f, 0.3f, 1.f, 1000.f, 3e38f})
    EXPECT_NEAR(largest / int8_scale_for(largest), 127, 1e-4) << largest;
  for (const float extreme : {std::numeric_limits<float>::denorm_min(), HUGE_VALF}) {
    EXPECT_TRUE(std::isnormal(int8_scale_for(extreme)));
    EXPECT_TRUE(std::isnormal(1 / int8_scale_for(extreme)));
  }
}

TEST(Quantised, SignsAreTheTopBitsOfSplitMix64) {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1234567}, ~std::uint64_t{0}}) {
    std::uint64_t state = seed;
    for (int column = 0; column < 256; ++column) {
      std::uint64_t z = (state += 0x9e3779b97f4a7c15);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      z ^= z >> 31;
      if (seed == 1234567 && column == 0) {
        EXPECT_EQ(z, 6457827717110365317u) << "a published value";
      }
      EXPECT_EQ(changes_sign(seed, column), z >= std::uint64_t{1} << 63) << seed << " " << column;
    }
  }
}

}  // namespace
}  // namespace tandem::core
