// Element types: 16-bit storage with conversions for the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <tandem/tandem.h>

namespace tandem::core {

constexpr std::size_t size_of(tandem_dtype dtype) { return dtype == TANDEM_FP32 ? 4 : 2; }

constexpr const char* name_of(tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_BF16:
      return "bf16";
    case TANDEM_FP16:
      return "fp16";
    case TANDEM_FP32:
      return "fp32";
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

}  // namespace tandem::core
