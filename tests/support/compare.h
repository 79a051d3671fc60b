// The tolerance rule that every backend's results have to meet.
#pragma once

#include <ostream>
#include <span>
#include <string>

namespace tandem::test {

struct Error {
  double rmse = 0, max = 0;
};

struct Comparison {
  Error result, standard;  ///< errors against the float64 reference, over its finite places
  std::string failure;     ///< empty: within the tolerance; else what is outside it, and where

  explicit operator bool() const { return failure.empty(); }
};

std::ostream& operator<<(std::ostream& out, const Comparison& comparison);

/// Compares `result` with the float64 `reference`, granting it the error of `standard`, an implementation
/// that works in the same precision without tiling:
///   NaN stands where the reference has NaN, infinity where and with the sign it has, and nowhere else;
///   RMSE <= 1.1 * RMSE(standard), with an allowance for chance where there are few elements;
///   max |result - reference| <= 2 * max |standard - reference| + 1e-5.
Comparison compare(std::span<const double> result, std::span<const double> standard,
                   std::span<const double> reference);

}  // namespace tandem::test
