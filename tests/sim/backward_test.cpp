// Every variant of the backward on the software Hopper: random problems, all policies, against the oracle.
//
// TANDEM_SIM_RUNS sets how many problems each test draws; TANDEM_SIM_SEED replays a single one.
#include "cpu/backward.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include "apps/sim/backward_sim.h"
#include "tests/sim/backward_draws.h"
#include "tests/support/backward_case.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem {
namespace {

using backward::BackwardVariant;
using test::BackwardCase;

/// A case, and what is right for it.
struct Problem {
  backward::Choice choice;
  BackwardCase c;
  test::BackwardTensors inputs;
  cpu::ReferenceGradients reference;
  test::BackwardValues standard;

  Problem(const backward::Choice& kernels, const BackwardCase& drawn) : choice(kernels), c(drawn), inputs(c) {
    reference = cpu::reference_gradients(inputs.problem());
    standard = test::standard_backward(inputs.problem());
  }

  /// Runs it with fresh outputs; what nobody sees holds NaN.
  void check(const sim::Machine& machine) const {
    test::BackwardTensors tensors(inputs);
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
    EXPECT_EQ(tensors.dsinks_failure(), "");
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) { return out << problem.c; }
};

TEST(BackwardOnHopper, NamesTheTensorsThatItCannotTake) {
  const test::BackwardTensors t(
      {.forward = {.dtype = TANDEM_BF16, .batch = 2, .q_len = 3, .k_len = 5, .head_dim = 64}});
  const core::BackwardProblem good = t.problem();
  const auto message_of = [](const core::BackwardProblem& problem) {
    return std::string(backward::supported(problem).message());
  };
  EXPECT_EQ(message_of(good), "");
  using Problem = core::BackwardProblem;
  const std::vector<std::pair<std::string, core::Tensor Problem::*>> tensors = {
      {"q", &Problem::q},       {"k", &Problem::k},   {"v", &Problem::v},   {"o", &Problem::o},
      {"dout", &Problem::dout}, {"dq", &Problem::dq}, {"dk", &Problem::dk}, {"dv", &Problem::dv}};
  for (const auto& [name, tensor] : tensors) {
    Problem p = good;
    (p.*tensor).stride[1] += 1;
    EXPECT_EQ(message_of(p).rfind(name + ".stride", 0), 0u) << message_of(p);
  }
  Problem p = good;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TANDEM_FP32;
  EXPECT_FALSE(backward::supported(p).ok()) << "no kernel takes fp32";
}

class BackwardOnSim : public testing::TestWithParam<BackwardVariant> {};
/// Whose variants have the ring of sums.
class BackwardRingOnSim : public BackwardOnSim {};

INSTANTIATE_TEST_SUITE_P(Variants, BackwardOnSim, testing::ValuesIn(backward::all_variants()),
                         test::test_name<BackwardVariant>);

INSTANTIATE_TEST_SUITE_P(Variants, BackwardRingOnSim,
                         testing::ValuesIn(test::variants_with_ring(backward::Lengths::uniform)),
                         test::test_name<BackwardVariant>);

TEST_P(BackwardOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_backward_test --gtest_filter=Variants/BackwardOnSim", 3, [](std::uint64_t seed) {
    return Problem(backward::choice_with(GetParam()), test::draw_case(GetParam(), seed));
  });
}

// More heads than the ring of sums holds on so few multiprocessors.
TEST_P(BackwardRingOnSim, HeadsThatFollowOneAnotherInTheRingEqualTheOracle) {
  test::for_each_run(
      "sim_backward_test --gtest_filter=Variants/BackwardRingOnSim", 3, [](std::uint64_t seed) {
        BackwardCase c = test::draw_case(GetParam(), seed & ~std::uint64_t{1});
        test::Random random(seed);
        test::ForwardCase& f = c.forward;
        f.batch = 2, f.q_heads = f.kv_heads = 3;
        f.q_len =
            1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * GetParam().block_m));
        f.k_len = GetParam().block_n + 1 + static_cast<std::int64_t>(random() % 128);
        f.mask = random() % 2 == 0 ? core::Mask::full() : test::random_mask(random, f.q_len, f.k_len);
        return Problem(backward::choice_with(GetParam()), c);
      });
}

// A head is a section, so that the order has phases of two heads, and the ring's places serve several; few
// queries see all of the many keys.
TEST_P(BackwardRingOnSim, SectionsOfHeadsThatOverlapEqualTheOracle) {
  test::for_each_run(
      "sim_backward_test --gtest_filter=Variants/BackwardRingOnSim", 2, [](std::uint64_t seed) {
        BackwardCase c = test::draw_case(GetParam(), seed);
        test::Random random(seed);
        test::ForwardCase& f = c.forward;
        f.batch = 1, f.q_heads = f.kv_heads = 5;
        f.q_len = 1 + static_cast<std::int64_t>(random() % 64);
        f.k_len = 8 * GetParam().block_n - static_cast<std::int64_t>(random() % 128);
        f.mask = core::Mask::causal();
        backward::Choice choice = backward::choice_with(GetParam());
        choice.cached_bytes = 1;
        Problem problem(choice, c);
        choice.grid = 2;  // multiprocessors that a run has at most
        EXPECT_LT(backward::ring_plan(backward::crop(problem.inputs.problem()), choice).heads, f.kv_heads);
        return problem;
      });
}

TEST_P(BackwardOnSim, SplitsOfAGroupEqualTheOracle) {
  test::for_each_run("sim_backward_test --gtest_filter=Variants/BackwardOnSim", 2, [](std::uint64_t seed) {
    BackwardCase c = test::draw_case(GetParam(), seed & ~std::uint64_t{1});
    test::Random random(seed);
    test::ForwardCase& f = c.forward;
    constexpr int splits[] = {2, 3, 2}, heads_of_split[] = {1, 1, 2};
    const std::uint64_t kind = random() % 3;
    f.batch = 1 + static_cast<std::int64_t>(random() % 2);
    f.q_heads = f.kv_heads * splits[kind] * heads_of_split[kind];
    backward::Choice choice = backward::choice_with(GetParam());
    choice.splits = splits[kind];
    return Problem(choice, c);
  });
}

/// Two keys' tiles and a few blocks of queries.
BackwardCase ragged_case(const BackwardVariant& variant) {
  BackwardCase c = test::draw_case(variant, 2);
  test::ForwardCase& f = c.forward;
  f.q_heads = f.kv_heads = 1;
  f.q_len = 200, f.k_len = 150;
  f.mask = core::Mask::full();
  return c;
}

TEST_P(BackwardOnSim, ABlockOfQueriesThatOneTileOfKeysAloneSeesEqualsTheOracle) {
  BackwardCase c = ragged_case(GetParam());
  c.forward.q_len = 188, c.forward.k_len = 208, c.forward.mask = {7, 0};  // of two tiles of 128 keys
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
}

/// Within a few roundings of a gradient's largest element.
void expect_few_roundings(const test::HostTensor& result, const test::HostTensor& reference,
                          const char* name) {
  const std::vector<double> values = result.values(), right = reference.values();
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(values[i])) << name << " " << i;
    largest = std::max(largest, std::abs(right[i]));
    difference = std::max(difference, std::abs(values[i] - right[i]));
  }
  EXPECT_LE(difference, 0.02 * largest + 1e-3) << name;
}

/// Runs the variant on the tensors, whose lse and o are taken as they are, and compares with the oracle.
void expect_the_oracles(const BackwardVariant& variant, test::BackwardTensors& tensors) {
  test::BackwardTensors right(tensors.setup);
  core::BackwardProblem problem = tensors.problem();
  problem.dq = right.dq.view(), problem.dk = right.dk.view(), problem.dv = right.dv.view();
  problem.dsinks = nullptr;
  cpu::reference_backward(problem);
  const hw::sim::Report report =
      sim::simulate_backward(tensors.problem(), backward::choice_with(variant), sim::Machine());
  ASSERT_TRUE(report.ok()) << report.text();
  expect_few_roundings(tensors.dq, right.dq, "dq");
  expect_few_roundings(tensors.dk, right.dk, "dk");
  expect_few_roundings(tensors.dv, right.dv, "dv");
  EXPECT_EQ(tensors.dsinks_failure(), "");
}

// Problem::check poisons them.
TEST_P(BackwardOnSim, QueriesThatSeeNoKeyAndKeysThatNobodySeesAreNotRead) {
  BackwardCase c = ragged_case(GetParam());
  c.forward.mask = core::Mask::causal();
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
  c.forward.q_len = 70, c.forward.mask = {40, 0};
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
}

TEST_P(BackwardOnSim, RowsWithLseMinusInfinityHaveNoPart) {
  test::BackwardTensors tensors(ragged_case(GetParam()));
  for (std::int64_t s = 0; s < 200; s += 3) tensors.lse.set(0, s, 0, 0, -INFINITY);
  expect_the_oracles(GetParam(), tensors);
}

TEST_P(BackwardOnSim, SinksHaveGradientsOfAllRowsAlsoOfThoseThatSeeNoKey) {
  BackwardCase c = ragged_case(GetParam());
  c.sinks = c.dlse = true;
  c.forward.q_heads = 2 * c.forward.kv_heads, c.forward.batch = 2;
  c.forward.mask = core::Mask::causal();  // 50 of 200 see none
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
  c.forward.k_len = 0;
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
  c.forward.q_len = 0;
  Problem(backward::choice_with(GetParam()), c).check(sim::Machine());
}

// exp(0 - lse) of a key behind the last one is infinite here, and infinity times its zeros NaN.
TEST_P(BackwardOnSim, KeysBehindTheLastOneAreHiddenWhereScoresAreVeryNegative) {
  BackwardCase c = ragged_case(GetParam());
  c.forward.scale = 1.f, c.sinks = false;
  if (GetParam().softcap) c.forward.softcap = 400.f;
  test::BackwardTensors tensors(c);
  tensors.q.fill(4.f), tensors.k.fill(-4.f);
  tensors.run_forward();
  ASSERT_LT(tensors.lse.values()[0], -200);
  const hw::sim::Report report =
      sim::simulate_backward(tensors.problem(), backward::choice_with(GetParam()), sim::Machine());
  ASSERT_TRUE(report.ok()) << report.text();
  for (const test::HostTensor* gradient : {&tensors.dq, &tensors.dk, &tensors.dv}) {
    for (const double x : gradient->values()) ASSERT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace tandem
