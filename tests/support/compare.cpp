#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <sstream>

namespace tandem::test {
namespace {

struct Statistics {
  Error error;
  std::size_t finite = 0, worst = 0;
};

Statistics error_of(std::span<const double> values, std::span<const double> reference) {
  Statistics s;
  double squares = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(reference[i])) continue;
    const double error = std::abs(values[i] - reference[i]);
    squares += error * error;
    ++s.finite;
    if (error > s.error.max) s.error.max = error, s.worst = i;
  }
  s.error.rmse = s.finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(s.finite));
  return s;
}

bool same_kind(double a, double b) {
  if (std::isnan(b)) return std::isnan(a);
  if (std::isinf(b)) return a == b;
  return std::isfinite(a);
}

double root_mean_square(std::span<const double> values, std::size_t finite) {
  double squares = 0;
  for (const double v : values) squares += std::isfinite(v) ? v * v : 0;
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

double largest_of(std::span<const double> values) {
  double largest = 0;
  for (const double v : values) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  return largest;
}

/// Of the last place of a number that is rounded to the type.
double half_unit(double value, tandem_dtype dtype) {
  const int mantissa_bits = dtype == TANDEM_BF16 ? 8 : dtype == TANDEM_FP16 ? 11 : 24;
  return value == 0 ? 0 : std::ldexp(0.5, std::ilogb(value) + 1 - mantissa_bits);
}

}  // namespace

Comparison compare(std::span<const double> result, std::span<const double> standard,
                   std::span<const double> reference, const Allowance& allowance) {
  Comparison c;
  std::ostringstream failure;
  if (result.size() != reference.size() || standard.size() != reference.size()) {
    failure << "sizes differ: result " << result.size() << ", standard " << standard.size() << ", reference "
            << reference.size();
    c.failure = failure.str();
    return c;
  }
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (same_kind(result[i], reference[i])) continue;
    failure << "element " << i << " is " << result[i] << ", the reference " << reference[i];
    c.failure = failure.str();
    return c;
  }
  const Statistics ours = error_of(result, reference), theirs = error_of(standard, reference);
  c.result = ours.error;
  c.standard = theirs.error;
  if (ours.finite == 0) return c;
  // Two samples of the same rounding noise differ by about 1 / sqrt(2 n) in RMSE; and where the standard is
  // exact by chance (one key), fp32 arithmetic of another order still may round its last bits.
  const double independent = static_cast<double>(ours.finite) / static_cast<double>(allowance.alike);
  const double chance = 1 + 3 / std::sqrt(std::max(1., independent));
  const double root = root_mean_square(reference, ours.finite);
  const double rmse_limit =
      chance * (1.1 * c.standard.rmse + allowance.noise + allowance.relative * root) + 5e-7 * root;
  // Of few errors the largest is about their RMSE, so it is granted no less.
  const double largest = largest_of(reference);
  const double max_limit = std::max(allowance.max_factor, 1.1 * chance) *
                               std::max(c.standard.max, half_unit(largest, allowance.rounded_to)) +
                           1e-5 + 4 * (allowance.noise + allowance.relative * largest);
  // Negated, so that a NaN among the limits fails.
  if (!(c.result.rmse <= rmse_limit)) failure << "RMSE " << c.result.rmse << " > " << rmse_limit << "; ";
  if (!(c.result.max <= max_limit)) {
    failure << "error " << c.result.max << " > " << max_limit << " at element " << ours.worst << ", which is "
            << result[ours.worst] << ", the reference " << reference[ours.worst];
  }
  c.failure = failure.str();
  return c;
}

// The RMSE of what may be anywhere up to 2^-10 of an octave: of a logarithm, and so of a factor.
constexpr double line_noise = 0x1p-10 * std::numbers::ln2 * std::numbers::inv_sqrt3;

Allowance allowance_of_o(tandem_dtype dtype) { return {.relative = dtype == TANDEM_INT8 ? line_noise : 0}; }
Allowance allowance_of_lse(tandem_dtype dtype) { return {.noise = dtype == TANDEM_INT8 ? line_noise : 0}; }

std::ostream& operator<<(std::ostream& out, const Comparison& c) {
  out << (c ? "within tolerance" : c.failure);
  return out << " (RMSE " << c.result.rmse << ", standard " << c.standard.rmse << "; max " << c.result.max
             << ", standard " << c.standard.max << ")";
}

double largest_difference(std::span<const double> result, std::span<const double> reference) {
  double largest = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (!same_kind(result[i], reference[i])) return std::numeric_limits<double>::infinity();
    if (!std::isfinite(reference[i])) continue;
    largest = std::max(largest, std::abs(result[i] - reference[i]) / std::max(1.0, std::abs(reference[i])));
  }
  return largest;
}

}  // namespace tandem::test
