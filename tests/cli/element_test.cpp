#include "element.h"

#include <array>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

float value_of(tandem_dtype dtype, std::uint16_t bits) {
  float value = 0;
  decode(dtype, reinterpret_cast<const std::byte*>(&bits), {&value, 1});
  return value;
}

std::uint16_t bits_of(tandem_dtype dtype, float value) {
  std::uint16_t bits = 0;
  encode(dtype, {&value, 1}, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

class SixteenBits : public testing::TestWithParam<tandem_dtype> {};
INSTANTIATE_TEST_SUITE_P(Element, SixteenBits, testing::Values(TANDEM_BF16, TANDEM_FP16),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SixteenBits, EveryValueSurvivesARoundTrip) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const float value = value_of(GetParam(), static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_to(GetParam(), value))) << bits;
    } else {
      EXPECT_EQ(bits_of(GetParam(), value), bits);
    }
  }
}

TEST_P(SixteenBits, RoundsToTheNearestNeighbourAndTiesToEven) {
  const std::uint16_t infinity = bits_of(GetParam(), INFINITY);
  for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const float low = value_of(GetParam(), bits),
                high = value_of(GetParam(), static_cast<std::uint16_t>(bits + 1));
    const float middle = static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    ASSERT_EQ(round_to(GetParam(), middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(round_to(GetParam(), std::nextafter(middle, low)), low) << bits;
    ASSERT_EQ(round_to(GetParam(), std::nextafter(-middle, -high)), -high) << bits;
  }
}

TEST(Element, KnownBitPatterns) {
  EXPECT_EQ(bits_of(TANDEM_FP16, 1.0f), 0x3c00);
  EXPECT_EQ(bits_of(TANDEM_FP16, -2.0f), 0xc000);
  EXPECT_EQ(bits_of(TANDEM_FP16, 65504.0f), 0x7bff);
  EXPECT_EQ(bits_of(TANDEM_FP16, 65520.0f), 0x7c00);  // past the largest by half a place: infinity
  EXPECT_EQ(bits_of(TANDEM_FP16, 0x1p-24f), 0x0001);
  EXPECT_EQ(bits_of(TANDEM_FP16, -0.0f), 0x8000);
  EXPECT_EQ(bits_of(TANDEM_BF16, 1.0f), 0x3f80);
  EXPECT_EQ(bits_of(TANDEM_BF16, -3.140625f), 0xc049);
}

}  // namespace
}  // namespace tandem::cli
