// Quotients and multiples of integers that are not negative.
#pragma once

#include <cstdint>

namespace tandem::core {

constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return ceil_div(n, unit) * unit; }

}  // namespace tandem::core
