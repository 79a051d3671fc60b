// Element types: 16-bit storage with conversions for the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <tandem/tandem.h>

namespace tandem::core {

constexpr std::size_t size_of(tandem_dtype dtype) {
  return dtype == TANDEM_FP32 ? 4 : dtype == TANDEM_E4M3 || dtype == TANDEM_INT8 ? 1 : 2;
}
/// Whether elements stand for their value times a scale (core/quantised.h).
constexpr bool is_8_bit(tandem_dtype dtype) { return dtype == TANDEM_E4M3 || dtype == TANDEM_INT8; }

constexpr const char* name_of(tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_BF16:
      return "bf16";
    case TANDEM_FP16:
      return "fp16";
    case TANDEM_FP32:
      return "fp32";
    case TANDEM_E4M3:
      return "e4m3";
    case TANDEM_INT8:
      return "int8";
  }
  return "unknown";
}

/// bfloat16: the upper half of a float. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct Bf16 {
  std::uint16_t bits;

  static Bf16 from(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return {static_cast<std::uint16_t>((word >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16)};
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16. Conversion rounds to nearest, ties to even, with subnormals, infinities and NaN.
struct Fp16 {
  std::uint16_t bits;

  static Fp16 from(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds past 65504
    if (magnitude < 0x38800000u) {  // subnormal: let a float addition round at 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
  }
  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
};

/// 8 bits: 4 of exponent with bias 7, 3 of mantissa; no infinities, NaN where all but the sign are set.
/// Conversion rounds to nearest, ties to even, and saturates at 448. Source: Micikevicius et al., "FP8
/// Formats for Deep Learning", 2022.
struct E4m3 {
  std::uint8_t bits;

  static constexpr float largest = 448;

  static E4m3 from(float value) {
    const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return {0x7f};
    if (magnitude >= largest) return {static_cast<std::uint8_t>(sign | 0x7e)};
    if (magnitude < 0x1p-6f) {  // subnormal: let a float addition round at 2^-9
      const float shifted = magnitude + 0x1p14f;
      return {static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u))};
    }
    const auto word = std::bit_cast<std::uint32_t>(magnitude);
    const std::uint32_t rounded = word + 0x7ffffu + ((word >> 20) & 1u);
    return {static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20))};
  }
  explicit operator float() const {
    const std::uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
    const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                          : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
    return bits & 0x80 ? -magnitude : magnitude;
  }
};

/// An integer from -127 to 127. Conversion rounds to nearest, ties to even, and saturates; NaN becomes 0.
struct Int8 {
  std::int8_t bits;

  static constexpr float largest = 127;

  static Int8 from(float value) {
    if (std::isnan(value)) return {0};
    return {static_cast<std::int8_t>(std::nearbyint(std::fmin(std::fmax(value, -largest), largest)))};
  }
  explicit operator float() const { return bits; }
};

}  // namespace tandem::core
