// Every variant of the backward on the software Hopper: random problems, all policies, against the oracle.
//
// TANDEM_SIM_RUNS sets how many problems each test draws; TANDEM_SIM_SEED replays a single one.
#include "cpu/backward.h"

#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include "apps/sim/backward_sim.h"
#include "tests/sim/runs.h"
#include "tests/support/backward_case.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem {
namespace {

using backward::BackwardVariant;
using test::BackwardCase;

/// Lengths around the blocks': ragged, a few of them.
std::int64_t draw_length(test::Random& random, int most) {
  const std::uint64_t kind = random() % 8;
  if (kind == 0) return static_cast<std::int64_t>(random() % 3);
  if (kind == 1) return 128 * static_cast<std::int64_t>(1 + random() % 2);
  return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
}

/// A problem that the variant serves.
BackwardCase draw_case(const BackwardVariant& variant, std::uint64_t seed) {
  test::Random random(seed);
  const tandem_dtype dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  BackwardCase c = test::random_tma_backward_case(seed, dtype, 1);
  test::ForwardCase& f = c.forward;
  f.batch = 1;
  f.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  f.q_heads = f.kv_heads * (1 + static_cast<std::int64_t>(random() % 2));
  f.q_len = draw_length(random, 400);
  f.k_len = draw_length(random, 300);
  f.mask = test::random_mask(random, f.q_len, f.k_len);
  f.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  f.softcap = variant.softcap ? 1.f + static_cast<float>(random() % 30) : 0.f;
  return c;
}

/// A case, and what is right for it.
struct Problem {
  backward::Choice choice;
  BackwardCase c;
  cpu::ReferenceGradients reference;
  test::BackwardValues standard;

  Problem(const backward::Choice& kernels, const BackwardCase& drawn) : choice(kernels), c(drawn) {
    const test::BackwardTensors inputs(c);
    reference = cpu::reference_gradients(inputs.problem());
    standard = test::standard_backward(inputs.problem());
  }

  /// Runs it with fresh outputs; what nobody sees holds NaN.
  void check(const sim::Machine& machine) const {
    test::BackwardTensors tensors(c);
    tensors.poison_unseen_rows();
    const hw::sim::Report report = sim::simulate_backward(tensors.problem(), choice, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    const test::Allowance allowance = test::gradient_allowance(tensors.problem());
    const auto expect_close = [&](const char* name, const test::HostTensor& result,
                                  const std::vector<double>& plain, const std::vector<double>& exact) {
      const test::Comparison comparison = test::compare(result.values(), plain, exact, allowance);
      EXPECT_TRUE(comparison) << name << " " << comparison;
    };
    expect_close("dq", tensors.dq, standard.dq, reference.dq);
    expect_close("dk", tensors.dk, standard.dk, reference.dk);
    expect_close("dv", tensors.dv, standard.dv, reference.dv);
    for (const auto* tensor : {&tensors.dq, &tensors.dk, &tensors.dv}) EXPECT_TRUE(tensor->guards_intact());
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) { return out << problem.c; }
};

class BackwardOnSim : public testing::TestWithParam<BackwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, BackwardOnSim, testing::ValuesIn(backward::all_variants()),
                         test::test_name<BackwardVariant>);

TEST_P(BackwardOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_backward_test --gtest_filter=Variants/BackwardOnSim", 3, [](std::uint64_t seed) {
    return Problem(backward::choice_with(GetParam()), draw_case(GetParam(), seed));
  });
}

}  // namespace
}  // namespace tandem
