// Reductions and prefix sums over the lanes of a warp.
#pragma once

#include <concepts>

#include "hw/hw.h"

namespace tandem::tile {

/// Warp: another lane's value.
template <typename Value>
TANDEM_DEVICE Value of_lane(Value value, int lane) {
  const auto from = static_cast<std::uint32_t>(lane);
  if constexpr (std::signed_integral<Value>) {
    return static_cast<Value>(hw::shuffle(static_cast<std::uint32_t>(value), from));
  } else {
    return hw::shuffle(value, from);
  }
}

/// Warp: joins the values of the lanes whose numbers differ from the own one in the bits from `first` up to
/// `lanes` / 2. All of them have the result. Without `first`: of `lanes` neighbours.
template <int lanes, int first = 1, typename Value, typename Join>
TANDEM_DEVICE Value warp_reduce(Value value, const Join& join) {
  TANDEM_UNROLL
  for (std::uint32_t distance = first; distance < lanes; distance *= 2) {
    if constexpr (std::signed_integral<Value>) {
      value = join(value, static_cast<Value>(hw::shuffle_xor(static_cast<std::uint32_t>(value), distance)));
    } else {
      value = join(value, hw::shuffle_xor(value, distance));
    }
  }
  return value;
}
template <int lanes = hw::warp_size, int first = 1, typename Value>
TANDEM_DEVICE Value warp_sum(Value value) {
  return warp_reduce<lanes, first>(value, [](Value a, Value b) { return a + b; });
}
template <int lanes = hw::warp_size, int first = 1, typename Value>
TANDEM_DEVICE Value warp_max(Value value) {
  return warp_reduce<lanes, first>(value, [](Value a, Value b) {
    if constexpr (std::floating_point<Value>) {
      return hw::max(a, b);
    } else {
      return a > b ? a : b;
    }
  });
}
template <std::integral Value>
TANDEM_DEVICE Value warp_min(Value value) {
  return warp_reduce<hw::warp_size>(value, [](Value a, Value b) { return a < b ? a : b; });
}

/// Warp: joins the values of the lanes before the own one, and the own.
template <typename Value, typename Join>
TANDEM_DEVICE Value warp_scan(Value value, const Join& join) {
  const auto lane = static_cast<int>(hw::lane_index());
  TANDEM_UNROLL
  for (int distance = 1; distance < hw::warp_size; distance *= 2) {
    const Value before = of_lane(value, lane < distance ? lane : lane - distance);
    value = lane < distance ? value : join(value, before);
  }
  return value;
}
TANDEM_DEVICE int warp_scan_sum(int value) {
  return warp_scan(value, [](int a, int b) { return a + b; });
}
TANDEM_DEVICE int warp_scan_max(int value) {
  return warp_scan(value, [](int a, int b) { return a > b ? a : b; });
}

}  // namespace tandem::tile
