// How the matrix unit of sm_90 adds e4m3 products (docs/simulator.md, Numbers), in plain code.
#pragma once

#include <algorithm>
#include <cmath>

namespace tandem::test {

/// accumulator + sum of a[i] * b[i] of up to 32 pairs of e4m3 values: each term cut 13 bits below the largest
/// exponent among them, and their exact sum cut to 13 bits behind its leading one.
inline float add_e4m3_products(float accumulator, const float* a, const float* b, int count) {
  // A subnormal factor's exponent is that of the smallest normal number.
  const auto exponent_of = [](float x) { return std::max(std::ilogb(x), -6); };
  double plain = accumulator;
  int largest = accumulator == 0 ? -100 : std::ilogb(accumulator);
  for (int i = 0; i < count; ++i) {
    plain += a[i] * b[i];
    if (a[i] * b[i] != 0) largest = std::max(largest, exponent_of(a[i]) + exponent_of(b[i]));
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  const double unit = std::ldexp(1.0, largest - 13);
  double sum = std::trunc(accumulator / unit);
  for (int i = 0; i < count; ++i) sum += std::trunc(a[i] * b[i] / unit);
  if (sum == 0) return 0;
  const double last = std::ldexp(1.0, std::ilogb(sum) - 13);
  return static_cast<float>(std::trunc(sum / last) * last * unit);
}

}  // namespace tandem::test
