// Rows times H diag(signs) / sqrt(d) (core/hadamard.h) on the host, in the order in which kernels add.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "core/hadamard.h"

namespace tandem::cpu {

/// row.size() is a power of two.
template <typename Real>
void multiply_by_hadamard(std::span<Real> row, std::uint64_t seed) {
  const std::size_t d = row.size();
  for (std::size_t i = 0; i < d; ++i)
    if (core::changes_sign(seed, static_cast<int>(i))) row[i] = -row[i];
  for (std::size_t distance = 1; distance < d; distance *= 2) {
    for (std::size_t i = 0; i < d; ++i) {
      if ((i & distance) != 0) continue;
      const Real low = row[i], high = row[i + distance];
      row[i] = low + high;
      row[i + distance] = low - high;
    }
  }
  const Real to_unit = Real{1} / std::sqrt(static_cast<Real>(d));
  for (Real& x : row) x = x * to_unit + Real{0};  // -0 becomes 0
}

}  // namespace tandem::cpu
