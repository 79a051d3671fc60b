// The tolerance rule that every backend's results have to meet.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include <tandem/types.h>

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

/// What a kind of result is granted beside the error of the standard implementation.
struct Allowance {
  double max_factor = 2;   ///< of the standard's largest error
  double noise = 0;        ///< RMSE of rounding in another order, where terms cancel
  double relative = 0;     ///< RMSE of what is in proportion to a result, as a part of it
  std::int64_t alike = 1;  ///< so many results have their errors together, as a row has its query's rounding
  tandem_dtype rounded_to =
      TANDEM_FP32;  ///< what results are: chance lets the standard round few of them well
};

/// Compares `result` with the float64 `reference`, granting it the error of `standard`, an implementation
/// that works in the same precision without tiling:
///   NaN stands where the reference has NaN, infinity where and with the sign it has, and nowhere else;
///   RMSE <= 1.1 * RMSE(standard) + noise + relative * RMS(reference), times an allowance for chance where
///     there are few results whose errors are independent;
///   max |result - reference| <= max_factor * max |standard - reference| + 1e-5
///     + 4 * (noise + relative * max |reference|), where a few results' factor is no less than their RMSE's,
///     and the standard's error no less than half a unit in the last place of the largest result.
Comparison compare(std::span<const double> result, std::span<const double> standard,
                   std::span<const double> reference, const Allowance& allowance = {});

/// For a dtype of q and k. Integer scores come with a large number in them, and the line that takes it out
/// again is rounded by up to 2^-10 of an octave (tile/block_softmax.h). Of rows of a few keys lse has all of
/// it, or, where probabilities are no codes, o has: their sum moves, and the few, as rounded, do not. Other
/// dtypes are granted nothing.
Allowance allowance_of_o(tandem_dtype dtype);
Allowance allowance_of_lse(tandem_dtype dtype);

/// The largest difference, absolute or relative, whichever is less; infinity where one is not finite and the
/// other is not the same.
double largest_difference(std::span<const double> result, std::span<const double> reference);
/// What lse may differ by from the oracle's, whatever the length and the size of the scores.
inline constexpr double lse_tolerance = 1e-5;

}  // namespace tandem::test
