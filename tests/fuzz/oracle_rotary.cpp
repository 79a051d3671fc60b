#include "tests/fuzz/oracle_rotary.h"

#include <algorithm>
#include <cmath>

namespace tandem::fuzz {

tandem_tensor table_of(const tandem_rotary& rotary, const void* angles) {
  const std::int64_t pairs = rotary.dim / 2;
  return {const_cast<void*>(angles), rotary.dtype, {1, 1, rotary.positions, pairs}, {0, 0, pairs, 1}};
}

bool rotary_holds(const tandem_rotary& rotary, const tandem_tensor& rotated) {
  if (rotary.struct_size != sizeof rotary || (rotary.interleaved != 0 && rotary.interleaved != 1))
    return false;
  const int dtype = number(rotary.dtype);
  if (dtype != TANDEM_FP32 && dtype != number(rotated.dtype)) return false;
  if (rotary.positions < 1 || rotary.positions > INT32_MAX) return false;
  if (rotary.dim < 16 || rotary.dim % 16 != 0 || rotary.dim > rotated.shape[3]) return false;
  return memory_holds(table_of(rotary, rotary.cos)) && memory_holds(table_of(rotary, rotary.sin));
}

Numbers turned(const Numbers& row, const tandem_rotary& rotary, std::int64_t position) {
  Numbers result = row;
  const std::int64_t pairs = rotary.dim / 2,
                     nearest = std::clamp<std::int64_t>(position, 0, rotary.positions - 1);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t offset = (nearest * pairs + i) * static_cast<std::int64_t>(size_of(rotary.dtype));
    const double cos = element(rotary.dtype, static_cast<const std::byte*>(rotary.cos) + offset),
                 sin = element(rotary.dtype, static_cast<const std::byte*>(rotary.sin) + offset);
    const auto a = static_cast<std::size_t>(rotary.interleaved != 0 ? 2 * i : i),
               b = static_cast<std::size_t>(rotary.interleaved != 0 ? 2 * i + 1 : i + pairs);
    result[a] = row[a] * cos - row[b] * sin;
    result[b] = row[b] * cos + row[a] * sin;
  }
  return result;
}

bool overflows(const Numbers& turned, tandem_dtype dtype) {
  const double largest = dtype == TANDEM_FP16 ? 65504 : dtype == TANDEM_BF16 ? 0x1.fep127 : 0x1.fffffep127;
  return std::any_of(turned.begin(), turned.end(),
                     [=](double x) { return std::isfinite(x) && std::abs(x) > largest; });
}

}  // namespace tandem::fuzz
