// Quotients, multiples and bounds of integers.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Of numbers that are not negative, as the next one.
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return ceil_div(n, unit) * unit; }

constexpr std::int32_t clamp(std::int32_t x, std::int32_t low, std::int32_t high) {
  return x < low ? low : (x > high ? high : x);
}

}  // namespace tandem::core
