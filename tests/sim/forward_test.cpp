// Every forward variant on the software Hopper: random problems, all policies, against the oracle.
//
// TANDEM_SIM_RUNS sets how many problems each test draws; TANDEM_SIM_SEED replays a single one.
#include "cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <ostream>
#include <random>
#include <sstream>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "forward/plan.h"
#include "tests/sim/forward_draws.h"
#include "tests/sim/simulated_forward.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::ForwardCase;
using Problem = test::SimulatedForward;

class ForwardOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, ForwardOnSim, testing::ValuesIn(sim::forward_variants()),
                         test::test_name<ForwardVariant>);

TEST_P(ForwardOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_forward_test --gtest_filter=Variants/ForwardOnSim", 3, [](std::uint64_t seed) {
    return Problem(GetParam(), test::draw_case(GetParam(), seed));
  });
}

TEST_P(ForwardOnSim, PackedHeadsEqualTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_forward_test --gtest_filter=Variants/ForwardOnSim", 3, [](std::uint64_t seed) {
    return Problem(GetParam(), test::draw_packed_case(GetParam(), seed));
  });
}

// Between the wait for the queries and their release there is no WGMMA here that would keep a warp's lanes
// together.
TEST_P(ForwardOnSim, LanesStayTogetherInTilesThatSeeNoKey) {
  const ForwardVariant& variant = GetParam();
  ForwardCase c = test::draw_case(variant, test::seed_of(sim::name_of(variant), 1));
  test::keep_one_head(c);
  c.q_len = 6 * variant.block_m;
  c.k_len = 0;
  const Problem problem(variant, c);
  for (std::uint64_t seed = 1; seed <= 2 && !HasFailure(); ++seed) {
    sim::Machine machine;
    machine.policy = hw::sim::Policy::random;
    machine.seed = seed;
    machine.multiprocessors = 1;
    problem.check(machine);
  }
}

// One key more than queries: the first rows of a tile may see two blocks fewer than its last ones.
TEST_P(ForwardOnSim, SeveralBlocksPassByBetweenTiles) {
  const ForwardVariant& variant = GetParam();
  ForwardCase c = test::draw_case(variant, test::seed_of(sim::name_of(variant), 2));
  test::keep_one_head(c);
  c.q_len = 3 * variant.block_m, c.k_len = c.q_len + 1;
  c.mask = core::Mask::causal();
  sim::Machine machine;
  machine.policy = hw::sim::Policy::random;
  machine.multiprocessors = 1;
  Problem(variant, c).check(machine);
}

// The reference of the exponents is rounded; what that costs may not add up over the blocks.
TEST_P(ForwardOnSim, EqualScoresWeighTheSameInEveryBlock) {
  const ForwardVariant& variant = GetParam();
  if (variant.is_8_bit()) GTEST_SKIP() << "such scores need 16 bits, and a block has its own reference here";
  ForwardCase c = test::draw_case(variant, test::seed_of(sim::name_of(variant), 1));
  test::keep_one_head(c);
  c.q_len = 3, c.k_len = 16 * variant.block_n, c.mask = core::Mask::full();
  c.scale = 1, c.softcap = variant.softcap ? 60'000.f : 0.f, c.lse = true;
  test::ForwardTensors tensors(c);
  test::make_scores_equal(tensors, 8, 6176);
  SCOPED_TRACE(c);
  const hw::sim::Report report = sim::simulate_forward(tensors.problem(), variant, {});
  ASSERT_TRUE(report.ok()) << report.text();
  const cpu::ReferenceValues reference = test::oracle_values(tensors.problem());
  EXPECT_LE(test::largest_difference(tensors.o.values(), reference.o), 3e-3);
  EXPECT_LE(test::largest_difference(tensors.lse.values(), reference.lse), test::lse_tolerance);
}

// Nothing averages the rounding of the one line that takes out what integer scores come with.
TEST_P(ForwardOnSim, RowsOfOneKeyAreWithinTheirAllowance) {
  if (!GetParam().integer_scores()) GTEST_SKIP();
  for (const int scale : {1, 2, 3}) {
    ForwardCase c = test::draw_case(GetParam(), test::seed_of(sim::name_of(GetParam()), scale));
    c.q_len = 40, c.k_len = 1, c.mask = core::Mask::full(), c.lse = true;
    SCOPED_TRACE(c);
    Problem(GetParam(), c).check({});
  }
}

/// A few queries on three blocks of 8-bit keys, whose first column adds 2 k to the scores: `k_of(block)`. Of
/// such scores fp16 keeps 11 bits: there k is less.
void check_with_offsets(const ForwardVariant& variant, float (*k_of)(std::int64_t block)) {
  ForwardCase c = test::draw_case(variant, test::seed_of(sim::name_of(variant), 3));
  test::keep_one_head(c);
  c.eight_bit.q.heads = c.eight_bit.k.heads = 0, c.scale = 0.125f;
  c.q_len = 3, c.k_len = std::int64_t{3} * variant.block_n, c.mask = core::Mask::full(), c.softcap = 0;
  if (variant.softcap) c.softcap = 1000;
  test::ForwardTensors tensors(c);
  const float less = variant.fp16_scores ? 0.375f : 1.f;
  for (std::int64_t query = 0; query < c.q_len; ++query) tensors.q.set(0, query, 0, 0, 16);
  for (std::int64_t key = 0; key < c.k_len; ++key)
    tensors.k.set(0, key, 0, 0, less * k_of(key / variant.block_n));
  test::expect_correct(variant, tensors, c);
}

// As integers, negative numbers are in the other order: the maximum of a row that has no others must not be
// its minimum. (16 bits hold probabilities above 1 too, and sums make up for them.)
TEST_P(ForwardOnSim, RowsOfNegativeScoresEqualTheOracle) {
  if (!GetParam().is_8_bit()) GTEST_SKIP();
  check_with_offsets(GetParam(), [](std::int64_t) { return -64.f; });
}

// The anchor of 8-bit rows moves where a block weighs more than 2^64: so do the output and the sums.
TEST_P(ForwardOnSim, ScoresThatRiseByManyOctavesEqualTheOracle) {
  if (!GetParam().is_8_bit()) GTEST_SKIP();
  check_with_offsets(GetParam(), [](std::int64_t block) { return 64.f * static_cast<float>(block); });
}

/// Values with outliers, N(0, 1) + N(0, 100) * Bernoulli(0.001), as FlashAttention-3 has them in section 4.3.
void fill_with_outliers(test::HostTensor& tensor, std::uint64_t seed) {
  test::Random random(seed);
  std::normal_distribution<float> normal;
  const core::Tensor view = tensor.view();
  for (std::int64_t s = 0; s < view.shape[1]; ++s) {
    for (std::int64_t i = 0; i < view.shape[3]; ++i) {
      const float outlier = random() % 1000 == 0 ? 10 * normal(random) : 0.f;
      tensor.set(0, s, 0, i, normal(random) + outlier);
    }
  }
}

TEST(ForwardWithOutliers, IsWithinThePublishedErrorInFp16) {
  ForwardCase c;
  c.dtype = TANDEM_FP16;
  c.q_len = 512, c.k_len = 8192, c.head_dim = 128;  // the paper's sequence, some of its queries
  test::ForwardTensors tensors(c);
  fill_with_outliers(tensors.q, 1), fill_with_outliers(tensors.k, 2), fill_with_outliers(tensors.v, 3);
  const std::vector<double> reference = test::oracle_values(tensors.problem()).o;
  const std::vector<double> standard = test::standard_forward(tensors.problem()).o;
  const ForwardVariant* variant = forward::choose_variant(tensors.problem());
  const hw::sim::Report report = sim::simulate_forward(tensors.problem(), *variant, {});
  ASSERT_TRUE(report.ok()) << report.text();
  const test::Comparison comparison = test::compare(tensors.o.values(), standard, reference);
  EXPECT_TRUE(comparison) << comparison;
  constexpr double published = 1.9e-4;
  EXPECT_LE(comparison.result.rmse, published)
      << "the standard implementation has " << comparison.standard.rmse;
  std::ostringstream rmse;
  rmse << comparison.result.rmse << ", standard " << comparison.standard.rmse;
  RecordProperty("rmse", rmse.str());
}

}  // namespace
}  // namespace tandem
