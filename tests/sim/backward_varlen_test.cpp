// The backward of variable lengths on the software Hopper: drawn batches, all policies, each sequence against
// the oracle of a call of its own.
//
// TANDEM_SIM_RUNS sets how many problems each test draws; TANDEM_SIM_SEED replays a single one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

#include "apps/sim/backward_sim.h"
#include "backward/varlen_plan.h"
#include "tests/sim/backward_draws.h"
#include "tests/support/varlen_backward_case.h"

namespace tandem {
namespace {

using backward::BackwardVariant;
using test::VarlenBackwardCase;
using test::VarlenBackwardTensors;

/// A case, and what is right for it.
struct Problem {
  backward::Choice choice;
  VarlenBackwardTensors inputs;
  test::VarlenBackwardExpected expected;

  Problem(const backward::Choice& kernels, const VarlenBackwardCase& c)
      : choice(kernels), inputs(c), expected(inputs) {}

  /// Runs it with fresh outputs.
  void check(const sim::Machine& machine) const {
    VarlenBackwardTensors tensors(inputs);
    const hw::sim::Report report = sim::simulate_backward(tensors.problem(), choice, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(test::failure_of(tensors, expected), "");
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) {
    return out << problem.inputs.setup;
  }
};

/// Entries follow one another then, as packed rows do.
void put_entries_in_order(VarlenBackwardCase& c) {
  test::BackwardCase& each = c.each;
  test::ForwardCase& f = each.forward;
  using test::Layout;
  if (!c.q_packed)
    for (Layout* layout : {&f.q, &f.o, &f.lse_layout, &each.dout, &each.dlse_layout, &each.dq}) *layout = {};
  if (!c.k_packed)
    for (Layout* layout : {&f.k, &f.v, &each.dk, &each.dv}) *layout = {};
}

/// A batch that the variant serves: lengths around its tiles' ends, some of several tiles.
VarlenBackwardCase draw_case(const BackwardVariant& variant, std::uint64_t seed) {
  test::Random random(seed);
  const tandem_dtype dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  VarlenBackwardCase c = test::random_varlen_backward_case(seed, dtype, 2 * variant.block_n, true);
  test::ForwardCase& f = c.each.forward;
  f.nearly_normal = true;
  f.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  f.q_heads = f.kv_heads * (1 + static_cast<std::int64_t>(random() % 2));
  f.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  put_entries_in_order(c);
  f.softcap = variant.softcap ? 1.f + static_cast<float>(random() % 30) : 0.f;
  return c;
}

class VarlenBackwardOnSim : public testing::TestWithParam<BackwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, VarlenBackwardOnSim,
                         testing::ValuesIn(backward::all_variants(backward::Lengths::varlen)),
                         test::test_name<BackwardVariant>);

TEST_P(VarlenBackwardOnSim, DrawnBatchesEqualTheOracleOfEachSequence) {
  test::for_each_run(
      "sim_backward_test --gtest_filter=Variants/VarlenBackwardOnSim", 3, [](std::uint64_t seed) {
        return Problem(backward::choice_with(GetParam()), draw_case(GetParam(), seed));
      });
}

}  // namespace
}  // namespace tandem
