// H diag(signs) / sqrt(d), by which rows are multiplied before they are rounded to 8 bits: it spreads an
// outlier over all columns, and leaves q k^T as it is where both are multiplied ("incoherent processing",
// FlashAttention-3, section 3.3).
#pragma once

#include <cmath>
#include <cstdint>

namespace tandem::core {

/// Whether column `column` changes its sign before the Hadamard transform: the top bit of SplitMix64's output
/// number column + 1. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
constexpr bool changes_sign(std::uint64_t seed, int column) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(column) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return ((x ^ (x >> 31)) >> 63) != 0;
}

/// The matrix of one seed as kernels have it.
struct HadamardView {
  static constexpr int most_columns = 256;

  bool on;                                 ///< rows are multiplied by it
  float to_unit;                           ///< 1 / sqrt(d)
  std::uint32_t signs[most_columns / 32];  ///< a bit for each column

  static HadamardView of(bool on, std::uint64_t seed, std::int64_t columns) {
    if (!on) return {};
    HadamardView view{on, 1.f / std::sqrt(static_cast<float>(columns)), {}};
    for (int column = 0; column < most_columns; ++column)
      view.signs[column / 32] |= static_cast<std::uint32_t>(changes_sign(seed, column)) << column % 32;
    return view;
  }
};

}  // namespace tandem::core
