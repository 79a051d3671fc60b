// A batch of variable lengths and a variant that computes it, as tests on the software Hopper check it.
#pragma once

#include <gtest/gtest.h>
#include <ostream>

#include "apps/sim/forward_sim.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {

struct VarlenProblem {
  const forward::ForwardVariant& variant;
  VarlenCase c;

  /// The kernel's results equal the oracle's, and nothing else is written. Of keys that are not listed the
  /// kernel sees NaN, and the oracle does not.
  void check(const sim::Machine& machine) const {
    VarlenTensors tensors(c);
    const bool lists_blocks = tensors.blocks.view().given();
    if (lists_blocks) spoil_unlisted(tensors);
    const hw::sim::Report report = sim::simulate_forward(tensors.problem(), variant, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    const VarlenValues values = varlen_values(tensors);
    const Comparison o = compare(values.result.o, values.standard.o, values.reference.o);
    EXPECT_TRUE(o) << "o: " << o;
    EXPECT_TRUE(others_untouched(tensors));
    if (!lists_blocks) {
      EXPECT_EQ(tensors.cache_failure(), "");
    }
    if (!c.lse) return;
    const Comparison lse = compare(values.result.lse, values.standard.lse, values.reference.lse);
    EXPECT_TRUE(lse) << "lse: " << lse;
  }

  friend std::ostream& operator<<(std::ostream& out, const VarlenProblem& problem) {
    return out << problem.c;
  }
};

}  // namespace tandem::test
