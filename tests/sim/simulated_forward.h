// A drawn problem on the software Hopper: against the oracle, by the tolerance rule.
#pragma once

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

/// The tolerance rule, of results that are rounded to the dtype.
inline testing::AssertionResult within_tolerance(const std::vector<double>& result,
                                                 const std::vector<double>& standard,
                                                 const std::vector<double>& reference, tandem_dtype dtype,
                                                 Allowance allowance = {}) {
  allowance.rounded_to = dtype;
  const Comparison comparison = compare(result, standard, reference, allowance);
  if (comparison) return testing::AssertionSuccess();
  return testing::AssertionFailure() << comparison;
}

/// Runs the variant over the case's tensors, as they are: o and, where it is asked for, lse are within the
/// rule.
inline void expect_correct(const forward::ForwardVariant& variant, const ForwardTensors& tensors,
                           const ForwardCase& c) {
  SCOPED_TRACE(c);
  const hw::sim::Report report = sim::simulate_forward(tensors.problem(), variant, {});
  ASSERT_TRUE(report.ok()) << report.text();
  const ForwardValues standard = standard_forward(tensors.problem());
  const cpu::ReferenceValues reference = oracle_values(tensors.problem());
  EXPECT_TRUE(within_tolerance(tensors.o.values(), standard.o, reference.o, c.o_dtype())) << "o";
  if (!c.lse) return;
  EXPECT_TRUE(within_tolerance(tensors.lse.values(), standard.lse, reference.lse, TANDEM_FP32,
                               allowance_of_lse(c.dtype)))
      << "lse";
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
    EXPECT_TRUE(within_tolerance(tensors.o.values(), standard.o, reference.o, c.o_dtype(), allowance_of(c)))
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
