// Decoding steps by the forward's kernels, on the software Hopper.
#include "api/step_as_forward.h"

#include <cstring>
#include <gtest/gtest.h>

#include "apps/sim/forward_sim.h"
#include "cpu/decode.h"
#include "forward/plan.h"
#include "tests/sim/runs.h"
#include "tests/sim/step_draws.h"
#include "tests/support/compare.h"

namespace tandem {
namespace {

using test::DecodeCase;
using test::DecodeTensors;

hw::sim::Report simulate(const core::DecodeProblem& step, const sim::Machine& machine) {
  const core::ForwardProblem problem = api::as_forward(step);
  return sim::simulate_forward(problem, *forward::choose_variant(problem), machine);
}

struct Step {
  DecodeCase c;

  void check(const sim::Machine& machine) const {
    const DecodeTensors before(c), t(c);
    const hw::sim::Report report = simulate(t.problem(), machine);
    ASSERT_TRUE(report.ok()) << report.text();
    const test::ForwardValues standard = test::standard_decode(before);
    const cpu::ReferenceValues reference = cpu::reference_decode_values(before.problem());
    const test::Comparison o = test::compare(t.o.values(), standard.o, reference.o);
    EXPECT_TRUE(o) << "o: " << o;
    EXPECT_EQ(t.cache_failure(before), "");
    if (!c.lse) return;
    const test::Comparison lse = test::compare(t.lse.values(), standard.lse, reference.lse);
    EXPECT_TRUE(lse) << "lse: " << lse;
  }

  friend std::ostream& operator<<(std::ostream& out, const Step& step) { return out << step.c; }
};

TEST(StepAsForwardOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_varlen_test --gtest_filter=StepAsForwardOnSim", 3,
                     [](std::uint64_t seed) { return Step{test::draw_forward_step(seed)}; });
}

/// Sequence i of a contiguous cache, as a step of its own.
core::DecodeProblem alone(const core::DecodeProblem& batch, std::int64_t i) {
  core::DecodeProblem one = batch;
  for (core::Tensor* t : {&one.q, &one.k_cache, &one.v_cache, &one.o, &one.lse}) {
    t->data = static_cast<std::byte*>(t->data) +
              i * t->stride[0] * static_cast<std::int64_t>(core::size_of(t->dtype));
    t->shape[0] = 1;
  }
  one.lengths += i, one.tree += i * batch.q_len();
  one.slopes = batch.slopes.of_sequence(i);
  return one;
}

// As fixed splits promise; the workspace and the grid are others.
TEST(StepAsForwardOnSim, ASequencesBitsAreTheSameInAnyBatch) {
  DecodeCase c;
  c.q_len = 3, c.q_heads = 8, c.kv_heads = 2, c.capacity = 400, c.lengths = {333, 5, 140, 400};
  c.mask = core::Mask::causal();
  c.slopes = c.slopes_by_sequence = c.tree = true, c.split_size = 64;
  const DecodeTensors together(c), apart(c);
  sim::Machine machine;
  machine.multiprocessors = 3;
  ASSERT_TRUE(simulate(together.problem(), machine).ok());
  for (std::int64_t i = 0; i < 4; ++i) {
    machine.multiprocessors = 1;
    ASSERT_TRUE(simulate(alone(apart.problem(), i), machine).ok());
  }
  EXPECT_TRUE(test::same_bytes(together.o, apart.o));
  EXPECT_TRUE(test::same_bytes(together.lse, apart.lse));
}

}  // namespace
}  // namespace tandem
