#include "element.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace tandem::cli {
namespace {

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((word >> 16) | 0x40u);
  const std::uint32_t half_up_to_even = 0x7fffu + ((word >> 16) & 1u);
  return static_cast<std::uint16_t>((word + half_up_to_even) >> 16);
}

float from_fp16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
  float magnitude;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else {
    magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t to_fp16(float value) {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude == 0.0f) return static_cast<std::uint16_t>(sign);
  // In units of the last place; 1024 to 2048 for normal values, so that the sum below carries into the
  // exponent.
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto mantissa = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | ((static_cast<unsigned>(exponent + 14) << 10) + mantissa));
}

template <typename Bits, typename Function>
void decode_each(const std::byte* bytes, std::span<float> values, Function from_bits) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    values[i] = from_bits(bits);
  }
}

template <typename Function>
void encode_each(std::span<const float> values, std::byte* bytes, Function to_bits) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = to_bits(values[i]);
    std::memcpy(bytes + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace

std::size_t size_of(tandem_dtype dtype) { return dtype == TANDEM_FP32 ? 4 : 2; }

std::string name_of(tandem_dtype dtype) {
  return dtype == TANDEM_BF16 ? "bf16" : dtype == TANDEM_FP16 ? "fp16" : "fp32";
}

double unit_roundoff(tandem_dtype dtype) {
  return dtype == TANDEM_BF16 ? 0x1p-9 : dtype == TANDEM_FP16 ? 0x1p-12 : 0x1p-25;
}

float round_to(tandem_dtype dtype, float value) {
  if (dtype == TANDEM_BF16) return from_bf16(to_bf16(value));
  if (dtype == TANDEM_FP16) return from_fp16(to_fp16(value));
  return value;
}

void decode(tandem_dtype dtype, const std::byte* bytes, std::span<float> values) {
  if (dtype == TANDEM_FP32) {
    if (!values.empty()) std::memcpy(values.data(), bytes, values.size_bytes());
  } else if (dtype == TANDEM_BF16) {
    decode_each<std::uint16_t>(bytes, values, from_bf16);
  } else {
    decode_each<std::uint16_t>(bytes, values, from_fp16);
  }
}

void encode(tandem_dtype dtype, std::span<const float> values, std::byte* bytes) {
  if (dtype == TANDEM_FP32) {
    if (!values.empty()) std::memcpy(bytes, values.data(), values.size_bytes());
  } else if (dtype == TANDEM_BF16) {
    encode_each(values, bytes, to_bf16);
  } else {
    encode_each(values, bytes, to_fp16);
  }
}

}  // namespace tandem::cli
