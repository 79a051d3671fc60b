// A drawn problem on the software Hopper: against the oracle, by the tolerance rule.
#pragma once

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "cpu/forward.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"

namespace tandem::test {

/// The tolerance rule; where it is the largest error that is too large, the standard's counts as no less than
/// half a unit in the last place of the largest output: over a few elements, chance lets it round better than
/// that.
inline testing::AssertionResult within_tolerance(const std::vector<double>& result,
                                                 const std::vector<double>& standard,
                                                 const std::vector<double>& reference, tandem_dtype dtype,
                                                 const Allowance& allowance = {}) {
  const Comparison comparison = compare(result, standard, reference, allowance);
  if (comparison) return testing::AssertionSuccess();
  double largest = 0;
  for (const double x : reference) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  const int mantissa_bits = dtype == TANDEM_BF16 ? 8 : dtype == TANDEM_FP16 ? 11 : 24;
  const double half_unit = largest == 0 ? 0 : std::ldexp(0.5, std::ilogb(largest) + 1 - mantissa_bits);
  const bool only_the_maximum =
      comparison.result.max > 0 && comparison.result.rmse <= 1.1 * comparison.standard.rmse;
  if (only_the_maximum && comparison.result.max <= 2 * half_unit + 1e-5) return testing::AssertionSuccess();
  return testing::AssertionFailure() << comparison;
}

/// A case for a variant of the forward, and what is right for it.
struct SimulatedForward {
  const forward::ForwardVariant& variant;
  ForwardCase c;
  cpu::ReferenceValues reference;
  ForwardValues standard;

  SimulatedForward(const forward::ForwardVariant& v, const ForwardCase& drawn) : variant(v), c(drawn) {
    const ForwardTensors inputs(c);
    reference = oracle_values(inputs.problem());
    standard = standard_forward(inputs.problem());
  }

  /// Runs it with fresh outputs.
  void check(const sim::Machine& machine) const {
    const ForwardTensors tensors(c);
    const hw::sim::Report report = sim::simulate_forward(tensors.problem(), variant, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_TRUE(
        within_tolerance(tensors.o.values(), standard.o, reference.o, c.o_dtype(), allowance_of_o(c.dtype)))
        << "o";
    EXPECT_TRUE(tensors.o.guards_intact());
    if (!c.lse) return;
    EXPECT_TRUE(within_tolerance(tensors.lse.values(), standard.lse, reference.lse, TANDEM_FP32,
                                 allowance_of_lse(c.dtype)))
        << "lse";
    EXPECT_TRUE(tensors.lse.guards_intact());
  }

  friend std::ostream& operator<<(std::ostream& out, const SimulatedForward& run) { return out << run.c; }
};

}  // namespace tandem::test
