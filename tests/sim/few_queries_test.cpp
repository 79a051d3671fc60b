// Forward passes of a few queries as decoding steps, on the software Hopper, over workspaces that hold
// anything.
#include "decode/few_queries.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "apps/sim/decode_sim.h"
#include "cpu/forward.h"
#include "decode/plan.h"
#include "tests/sim/near_oracle.h"
#include "tests/sim/runs.h"
#include "tests/sim/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"

namespace tandem {
namespace {

using test::ForwardCase;

ForwardCase draw_case(std::uint64_t seed) {
  test::Random random(seed);
  const auto draw = [&random](std::uint64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
  ForwardCase c;
  c.seed = seed;
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = 64 * (1 << random() % 2);
  c.kv_heads = draw(2), c.q_heads = c.kv_heads * draw(7);
  c.batch = draw(3), c.q_len = draw(20), c.k_len = draw(700);
  switch (random() % 4) {
    case 0:
      c.mask = core::Mask::causal();
      break;
    case 1:
      c.mask = core::Mask{draw(300), draw(20)};
      break;
    default:
      break;
  }
  if (random() % 4 == 0) c.softcap = 20.f;
  c.lse = random() % 2 == 0;
  return c;
}

void expect_equal_to_the_oracle(const ForwardCase& c, const sim::Machine& machine) {
  const test::ForwardTensors tensors(c);
  const core::ForwardProblem problem = tensors.problem();
  const auto step = decode::step_of(problem);
  ASSERT_TRUE(step.has_value());
  const decode::DecodeVariant& variant = *decode::choose_variant(*step);
  test::Workspace workspace;
  const auto memory = workspace.of(decode::workspace_bytes(*step, variant));
  std::ranges::fill(memory, std::byte{0x5a});
  const hw::sim::Report cleared = sim::simulate_clear(memory, machine);
  ASSERT_TRUE(cleared.ok()) << cleared.text();
  const hw::sim::Report report = sim::simulate_decode(*step, variant, {memory, {}, {}}, machine);
  ASSERT_TRUE(report.ok()) << report.text();
  test::expect_near_oracle(problem, tensors);
}

TEST(FewQueriesOnSim, AStepOfHeadDimsAbove256EqualsTheForwardsOracle) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    ForwardCase c = draw_case(seed);
    c.head_dim = seed % 2 == 0 ? 512 : 264, c.batch = 1;
    SCOPED_TRACE(testing::Message() << c);
    sim::Machine machine;
    machine.policy = hw::sim::Policy::random;
    machine.seed = seed;
    expect_equal_to_the_oracle(c, machine);
  }
}

TEST(FewQueriesOnSim, AStepOverAnyWorkspaceEqualsTheForwardsOracle) {
  const std::uint64_t runs = test::number_from_environment("TANDEM_SIM_RUNS", 8);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    const ForwardCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << c);
    for (const hw::sim::Policy policy :
         {hw::sim::Policy::eager, hw::sim::Policy::late, hw::sim::Policy::random}) {
      sim::Machine machine;
      machine.policy = policy;
      machine.seed = seed;
      expect_equal_to_the_oracle(c, machine);
    }
  }
}

TEST(FewQueries, WhatNoStepComputesHasNone) {
  ForwardCase c;
  c.head_dim = 128, c.k_len = 1000;
  ASSERT_TRUE(decode::step_of(test::shapes_of(c)).has_value());
  for (const auto& [change, what] : std::initializer_list<std::pair<void (*)(ForwardCase&), const char*>>{
           {[](ForwardCase& x) { x.dtype = TANDEM_FP32; }, "fp32"},
           {[](ForwardCase& x) { x.q_len = 5000; }, "many queries"},
           {[](ForwardCase& x) { x.k_len = 0; }, "no keys"},
           {[](ForwardCase& x) { x.turn = TANDEM_TURN_FREE; }, "a kernel that is asked for"},
           {[](ForwardCase& x) { x.block_m = 128; }, "a tile that is asked for"}}) {
    ForwardCase other = c;
    change(other);
    EXPECT_FALSE(decode::step_of(test::shapes_of(other)).has_value()) << what;
  }
}

}  // namespace
}  // namespace tandem
