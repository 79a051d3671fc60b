// Steps of decode kernels on the software Hopper, and what comes out against the oracle.
#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "decode/plan.h"
#include "tests/sim/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/decode_case.h"
#include "tests/support/decode_reference.h"

namespace tandem::test {

/// Runs the step on these tensors; a fault fails the test.
inline void run(const decode::DecodeVariant& variant, DecodeTensors& tensors, Workspace& workspace,
                const sim::Machine& machine, std::span<std::int32_t> plan = {}) {
  core::DecodeProblem problem = tensors.problem();
  problem.plan = plan.empty() ? nullptr : plan.data();
  const sim::DecodeMemory memory{workspace.of(decode::workspace_bytes(problem, variant)), tensors.page_table,
                                 plan};
  const hw::sim::Report report = sim::simulate_decode(problem, variant, memory, machine);
  EXPECT_TRUE(report.ok()) << report.text();
}
/// Runs the step and returns its tensors.
inline DecodeTensors run(const decode::DecodeVariant& variant, const DecodeCase& c, Workspace& workspace,
                         const sim::Machine& machine, std::span<std::int32_t> plan = {}) {
  DecodeTensors tensors(c);
  run(variant, tensors, workspace, machine, plan);
  return tensors;
}

/// The plan of a step on the machine.
inline std::vector<std::int32_t> plan_of(const decode::DecodeVariant& variant, const DecodeTensors& tensors,
                                         Workspace& workspace, const sim::Machine& machine) {
  const core::DecodeProblem problem = tensors.problem();
  std::vector<std::int32_t> plan(decode::any_plan_bytes / sizeof(std::int32_t), -1);
  const sim::DecodeMemory memory{workspace.of(decode::workspace_bytes(problem, variant)), tensors.page_table,
                                 plan};
  const hw::sim::Report report = sim::simulate_plan(problem, variant, memory, machine);
  EXPECT_TRUE(report.ok()) << report.text();
  return plan;
}

inline void expect_correct(const DecodeTensors& after, const DecodeTensors& before) {
  const DecodeCase& c = after.setup;
  const cpu::ReferenceValues reference = reference_of(after, before);
  const ForwardValues standard = standard_decode(before);
  const Comparison o = compare(after.o.values(), standard.o, reference.o, allowance_of(c));
  EXPECT_TRUE(o) << "o: " << o;
  EXPECT_TRUE(after.o.guards_intact());
  EXPECT_EQ(after.cache_failure(before), "");
  if (!c.lse) {
    EXPECT_TRUE(after.lse.untouched());
    return;
  }
  const Comparison lse = compare(after.lse.values(), standard.lse, reference.lse, allowance_of_lse(c));
  EXPECT_TRUE(lse) << "lse: " << lse;
  EXPECT_TRUE(after.lse.guards_intact());
}

}  // namespace tandem::test
