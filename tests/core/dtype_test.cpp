#include "core/dtype.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace tandem::core {
namespace {

/// A 16-bit format as its definition says, in double arithmetic.
struct Format {
  int exponent_bits, mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double value(std::uint32_t bits) const {
    const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double sign = (bits >> 15) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa ? std::numeric_limits<double>::quiet_NaN()
                      : sign * std::numeric_limits<double>::infinity();
    }
    const double fraction = mantissa + (exponent ? std::ldexp(1.0, mantissa_bits) : 0.0);
    return sign * std::ldexp(fraction, std::max(exponent, 1) - bias() - mantissa_bits);
  }

  /// Nearest value, ties to even: the double is rounded to a multiple of the spacing at its size.
  double rounded(double x) const {
    if (x == 0 || !std::isfinite(x)) return x;
    const int exponent = std::max(std::ilogb(x), 1 - bias());
    const double spacing = std::ldexp(1.0, exponent - mantissa_bits);
    const double nearest = std::nearbyint(x / spacing) * spacing;  // the default mode is ties to even
    const double largest = std::ldexp(2 - std::ldexp(1.0, -mantissa_bits), bias());
    return std::abs(nearest) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : nearest;
  }
};

constexpr Format bf16{8, 7}, fp16{5, 10};

template <typename Element>
void expect_all_patterns(const Format& format) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Element element{static_cast<std::uint16_t>(bits)};
    const auto value = static_cast<float>(element);
    const double expected = format.value(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << "pattern " << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Element::from(value)))) << "pattern " << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << "pattern " << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << "pattern " << bits;
    ASSERT_EQ(Element::from(value).bits, bits) << "does not return from " << value;
  }
}

template <typename Element>
void expect_rounding(const Format& format, float x) {
  const auto result = static_cast<float>(Element::from(x));
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(result)) << "bits " << std::bit_cast<std::uint32_t>(x);
    return;
  }
  ASSERT_EQ(result, format.rounded(x)) << "of " << std::hexfloat << x;
  ASSERT_EQ(std::signbit(result), std::signbit(x)) << "of " << std::hexfloat << x;
}

/// Floats at, halfway between, and right beside all neighbours of the format, and random ones.
template <typename Element>
void expect_rounding_everywhere(const Format& format) {
  for (std::uint32_t bits = 0; bits < 65535; ++bits) {
    const auto low = static_cast<double>(static_cast<float>(Element{static_cast<std::uint16_t>(bits)}));
    const auto high = static_cast<double>(static_cast<float>(Element{static_cast<std::uint16_t>(bits + 1)}));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float x : {middle, std::nextafter(middle, 1e38f), std::nextafter(middle, -1e38f)}) {
      ASSERT_NO_FATAL_FAILURE(expect_rounding<Element>(format, x));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        expect_rounding<Element>(format, std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
  }
  for (const float x : {0.0f, -0.0f, 65504.0f, 65519.99f, 65520.0f, 3.3895314e38f, 3.39615e38f, 3.4028235e38f,
                        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::denorm_min(), 0x1p-24f, 0x1p-25f, 0x1.000002p-25f}) {
    ASSERT_NO_FATAL_FAILURE(expect_rounding<Element>(format, x));
    ASSERT_NO_FATAL_FAILURE(expect_rounding<Element>(format, -x));
  }
}

TEST(Bf16, EveryPatternMeansWhatTheFormatSays) { expect_all_patterns<Bf16>(bf16); }
TEST(Fp16, EveryPatternMeansWhatTheFormatSays) { expect_all_patterns<Fp16>(fp16); }
TEST(Bf16, RoundsToNearestTiesToEven) { expect_rounding_everywhere<Bf16>(bf16); }
TEST(Fp16, RoundsToNearestTiesToEven) { expect_rounding_everywhere<Fp16>(fp16); }

TEST(Bf16, NanWithLowPayloadStaysNan) {
  const float nan = std::bit_cast<float>(0x7f800001u);  // truncation alone would give infinity
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16::from(nan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16::from(-nan))));
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(size_of(TANDEM_BF16), 2u);
  EXPECT_EQ(size_of(TANDEM_FP16), 2u);
  EXPECT_EQ(size_of(TANDEM_FP32), 4u);
  EXPECT_STREQ(name_of(TANDEM_BF16), "bf16");
  EXPECT_STREQ(name_of(TANDEM_FP16), "fp16");
  EXPECT_STREQ(name_of(TANDEM_FP32), "fp32");
}

// OCP's definition, in double arithmetic.
TEST(E4m3, EveryPatternHasItsValueAndReturnsFromIt) {
  for (int bits = 0; bits < 256; ++bits) {
    const E4m3 element{static_cast<std::uint8_t>(bits)};
    const auto value = static_cast<float>(element);
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(E4m3::from(value).bits, 0x7f);
      continue;
    }
    const int exponent = bits >> 3 & 15;
    const double fraction = (bits & 7) + (exponent == 0 ? 0 : 8);
    const double expected = (bits & 128 ? -1 : 1) * std::ldexp(fraction, std::max(exponent, 1) - 10);
    EXPECT_EQ(value, expected) << bits;
    EXPECT_EQ(E4m3::from(value).bits, bits);
  }
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  for (int bits = 0; bits < 0x7e; ++bits) {  // between each two neighbours
    const auto low = static_cast<float>(E4m3{static_cast<std::uint8_t>(bits)});
    const auto high = static_cast<float>(E4m3{static_cast<std::uint8_t>(bits + 1)});
    const float tie = (low + high) / 2;
    EXPECT_EQ(E4m3::from(tie).bits, bits + bits % 2);
    EXPECT_EQ(E4m3::from(std::nextafter(tie, 0.f)).bits, bits);
    EXPECT_EQ(E4m3::from(-std::nextafter(tie, high)).bits, (bits + 1) | 128);
  }
  EXPECT_EQ(E4m3::from(1e30f).bits, 0x7e);
  EXPECT_EQ(E4m3::from(-std::numeric_limits<float>::infinity()).bits, 0xfe);
  EXPECT_EQ(E4m3::from(std::numeric_limits<float>::quiet_NaN()).bits, 0x7f);
}

}  // namespace
}  // namespace tandem::core
