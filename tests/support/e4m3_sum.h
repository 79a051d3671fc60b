// How the matrix unit of sm_90 adds e4m3 products (docs/simulator.md, Numbers), in plain code.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace tandem::test {

/// Of a number that is no NaN; of 0, less than of any other.
template <typename Real>
int exponent_of(Real x) {
  constexpr bool is_double = sizeof(Real) == 8;
  const auto word = std::bit_cast<std::conditional_t<is_double, std::uint64_t, std::uint32_t>>(x);
  return is_double ? static_cast<int>(word >> 52 & 0x7ff) - 1023 : static_cast<int>(word >> 23 & 0xff) - 127;
}

/// 2^exponent, of a normal number.
inline double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// accumulator + sum of a[i] * b[i] of up to 32 pairs of e4m3 values: each term cut 13 bits below the largest
/// exponent among them, and their exact sum cut to 13 bits behind its leading one, unless it stays `whole`.
inline float add_e4m3_products(float accumulator, const float* a, const float* b, int count,
                               bool whole = false) {
  double plain = accumulator;
  int largest = std::max(exponent_of(accumulator), -100);
  for (int i = 0; i < count; ++i) {
    plain += a[i] * b[i];
    // A subnormal factor's exponent is that of the smallest normal number.
    const int exponent = std::max(exponent_of(a[i]), -6) + std::max(exponent_of(b[i]), -6);
    if (a[i] * b[i] != 0) largest = std::max(largest, exponent);
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  const double units = power_of_two(13 - largest);
  double sum = std::trunc(accumulator * units);
  for (int i = 0; i < count; ++i) sum += std::trunc(a[i] * b[i] * units);
  if (sum == 0 || whole) return static_cast<float>(sum / units);
  const double last = power_of_two(exponent_of(sum) - 13);
  return static_cast<float>(std::trunc(sum / last) * last / units);
}

}  // namespace tandem::test
