// A batch of variable lengths and a variant that computes it, as tests on the software Hopper check it.
#pragma once

#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {

struct VarlenProblem {
  const forward::ForwardVariant& variant;
  VarlenCase c;

  /// The kernel's results equal the oracle's, and nothing else is written.
  void check(const sim::Machine& machine) const { check_call(machine, c, nullptr); }

  /// The same of two layers, which have the same lengths and share a plan.
  void check_layers(const sim::Machine& machine) const {
    std::vector<std::int32_t> plan;
    const VarlenTensors first(c);
    const hw::sim::Report report = sim::simulate_list(first.problem(), variant, machine, plan);
    ASSERT_TRUE(report.ok()) << report.text();
    VarlenCase second = c;
    if (!c.batch_index) ++second.seed;  // by which entries are drawn
    for (const VarlenCase& layer : {c, second}) {
      ASSERT_NO_FATAL_FAILURE(check_call(machine, layer, plan.data()));
    }
  }

  friend std::ostream& operator<<(std::ostream& out, const VarlenProblem& problem) {
    return out << problem.c;
  }

 private:
  /// Of keys that are not listed the kernel sees NaN, and the oracle does not.
  void check_call(const sim::Machine& machine, const VarlenCase& layer, void* plan) const {
    VarlenTensors tensors(layer);
    const bool lists_blocks = tensors.blocks.view().given();
    if (lists_blocks) spoil_unlisted(tensors);
    core::ForwardProblem problem = tensors.problem();
    problem.plan = plan;
    const hw::sim::Report report = sim::simulate_forward(problem, variant, machine);
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
};

}  // namespace tandem::test
