// The forward's kernels for variable lengths on the software Hopper: random batches, all policies, against
// the oracle of each sequence.
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "apps/sim/merge_sim.h"
#include "cpu/forward.h"
#include "forward/plan.h"
#include "forward/split.h"
#include "tests/sim/near_oracle.h"
#include "tests/sim/varlen_draws.h"
#include "tests/sim/varlen_problem.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::ForwardCase;
using test::VarlenCase;
using test::VarlenProblem;

class VarlenOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, VarlenOnSim,
                         testing::ValuesIn(sim::forward_variants(forward::Lengths::varlen)),
                         test::test_name<ForwardVariant>);

TEST_P(VarlenOnSim, EachSequenceEqualsItsOracleUnderEveryPolicy) {
  test::for_each_run("sim_varlen_test --gtest_filter=Variants/VarlenOnSim", 3, [](std::uint64_t seed) {
    return VarlenProblem{GetParam(), test::draw_varlen_case(GetParam(), seed)};
  });
}

/// As for_each_run runs it.
struct VarlenLayers : VarlenProblem {
  void check(const sim::Machine& machine) const { check_layers(machine); }
};

/// Of larger head dims lists are the same.
std::vector<ForwardVariant> variants_of_head_dim_64() {
  std::vector<ForwardVariant> variants = sim::forward_variants(forward::Lengths::varlen);
  std::erase_if(variants, [](const ForwardVariant& v) { return v.head_dim > 64; });
  return variants;
}

class VarlenLayersOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, VarlenLayersOnSim, testing::ValuesIn(variants_of_head_dim_64()),
                         test::test_name<ForwardVariant>);

TEST_P(VarlenLayersOnSim, ShareAPlan) {
  test::for_each_run("sim_varlen_test --gtest_filter=Variants/VarlenLayersOnSim", 3, [](std::uint64_t seed) {
    return VarlenLayers{{GetParam(), test::draw_varlen_case(GetParam(), seed)}};
  });
}

// The list of tiles is made by warps whose lanes take a sequence each, and then a head each.
VarlenCase many_short(std::size_t sequences, std::int64_t heads) {
  VarlenCase c;
  for (std::size_t i = 0; i < sequences; ++i) {
    c.q_lens.push_back(static_cast<std::int64_t>(i * 7 % 5 * 3));
    c.k_lens.push_back(static_cast<std::int64_t>(i * 11 % 13));
  }
  c.q_heads = c.kv_heads = heads;
  c.mask = core::Mask::causal();
  return c;
}

TEST(VarlenOnSimList, MoreSequencesOrHeadsThanAWarpHasLanes) {
  for (const VarlenCase& c : {many_short(70, 1), many_short(2, 37)}) {
    SCOPED_TRACE(testing::Message() << c);
    const test::VarlenTensors tensors(c);
    const core::ForwardProblem problem = tensors.problem();
    const ForwardVariant* variant = forward::choose_variant(problem);
    ASSERT_NE(variant, nullptr);
    sim::Machine machine;
    machine.multiprocessors = 3;
    VarlenProblem{*variant, c}.check(machine);
  }
}

// A warp's lanes leave a wait one by one: of tiles without keys, none may miss a phase.
TEST(VarlenOnSimList, TilesWithoutKeysFollowOneAnother) {
  VarlenCase c;
  c.q_lens.assign(40, 20), c.k_lens.assign(40, 0), c.k_lens[0] = 100;
  c.keys = test::KeyLayout::paged;
  const ForwardVariant* variant = forward::choose_variant(test::VarlenTensors(c).problem());
  ASSERT_NE(variant, nullptr);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    sim::Machine machine;
    machine.multiprocessors = 13;
    machine.policy = hw::sim::Policy::random;
    machine.seed = seed;
    VarlenProblem{*variant, c}.check(machine);
  }
}

/// Fixed lengths with what only kernels for variable lengths know: these serve, and o and lse are right.
void expect_equal_to_the_oracle(const core::ForwardProblem& problem, const test::ForwardTensors& tensors) {
  const core::ForwardProblem known = forward::for_kernels(problem);
  const ForwardVariant* variant = forward::choose_variant(known);
  ASSERT_NE(variant, nullptr);
  const hw::sim::Report report = sim::simulate_forward(known, *variant, sim::Machine());
  ASSERT_TRUE(report.ok()) << report.text();
  ASSERT_TRUE(tensors.setup.lse);
  test::expect_near_oracle(problem, tensors);
}

TEST(VarlenOnSimSinks, OfFixedLengthsEqualTheOracle) {
  ForwardCase c;
  c.q_len = 150, c.k_len = 140, c.batch = 2, c.q_heads = 3, c.lse = true;
  c.mask = core::Mask::causal();
  const test::ForwardTensors tensors(c);
  const float sinks[] = {1.f, -std::numeric_limits<float>::infinity(), 100.f};
  core::ForwardProblem problem = tensors.problem();
  problem.sinks = sinks;
  expect_equal_to_the_oracle(problem, tensors);
}

TEST(VarlenOnSimChunks, OfFixedLengthsEqualTheOracle) {
  ForwardCase c;
  c.q_len = 150, c.k_len = 340, c.q_heads = 2, c.lse = true;
  c.mask = core::Mask::causal();
  c.mask.chunk = 100;
  const test::ForwardTensors tensors(c);
  expect_equal_to_the_oracle(tensors.problem(), tensors);
}

TEST(VarlenOnSimSlopes, OfFixedLengthsEqualTheOracle) {
  ForwardCase c;
  c.q_len = 150, c.k_len = 340, c.q_heads = 2, c.batch = 2, c.lse = true;
  c.mask = core::Mask::causal();
  const test::ForwardTensors tensors(c);
  const float slopes[] = {0.5f, 0.0625f, 0.f, -0.01f};
  core::ForwardProblem problem = tensors.problem();
  problem.slopes = {slopes, 2};
  expect_equal_to_the_oracle(problem, tensors);
}

// A thread's two rows are 8 apart: of so many heads that share a tile, they are not of the same one.
TEST(VarlenOnSimSlopes, OfMoreHeadsThanRowsLieBetweenAThreadsRows) {
  VarlenCase c;
  c.q_lens = {5, 9}, c.k_lens = {200, 40};
  c.q_heads = 16, c.kv_heads = 1;
  c.mask = core::Mask::causal();
  c.sinks = c.slopes = c.slopes_by_sequence = c.tree = true;
  const test::VarlenTensors tensors(c);
  const ForwardVariant* variant = forward::choose_variant(tensors.problem());
  ASSERT_NE(variant, nullptr);
  ASSERT_EQ(forward::tiling_of(tensors.problem(), *variant).packing.heads(), 16);
  VarlenProblem{*variant, c}.check(sim::Machine());
}

// All keys of the second block are seen but for the tree, which begins there: of few queries, of as many as a
// word has bits, and of one more, which is no tree.
TEST(VarlenOnSimTree, BeginsInABlockThatWouldBeFullWithoutIt) {
  for (const std::int64_t queries : {40, 64, 65}) {
    VarlenCase c;
    c.q_lens = {queries}, c.k_lens = {270};
    c.tree = true;
    const ForwardVariant* variant = forward::choose_variant(test::VarlenTensors(c).problem());
    ASSERT_NE(variant, nullptr);
    c.k_lens = {2 * variant->block_n + 14};
    SCOPED_TRACE(testing::Message() << c);
    ASSERT_GE(c.k_lens[0] - queries, variant->block_n);
    VarlenProblem{*variant, c}.check(sim::Machine());
  }
}

TEST(VarlenOnSimTree, OfQueriesInEntriesHaveWordsInEntries) {
  VarlenCase c;
  c.q_lens = {20, 64, 33}, c.k_lens = {70, 200, 33};
  c.q_packed = false;
  c.tree = true;
  const ForwardVariant* variant = forward::choose_variant(test::VarlenTensors(c).problem());
  ASSERT_NE(variant, nullptr);
  VarlenProblem{*variant, c}.check(sim::Machine());
}

// Few queries on many keys: parts of the keys side by side, then a merge.
ForwardCase draw_split_case(std::uint64_t seed) {
  test::Random random(seed);
  ForwardCase c;
  c.seed = seed;
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.q_len = 1 + static_cast<std::int64_t>(random() % 40);
  c.k_len = 1024 + static_cast<std::int64_t>(random() % 1500);
  c.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  c.q_heads = c.kv_heads << random() % 3;
  c.batch = 1 + static_cast<std::int64_t>(random() % 2);
  c.head_dim = 64 - 8 * static_cast<std::int64_t>(random() % 3);
  if (random() % 2 == 0) c.mask = core::Mask::causal();
  if (random() % 4 == 0) c.softcap = 20.f;
  c.lse = random() % 2 == 0;
  return c;
}

void check_split(const ForwardCase& c, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << c);
  const test::ForwardTensors tensors(c);
  const core::ForwardProblem problem = tensors.problem();
  const int splits = 2 + static_cast<int>(seed % 3);
  std::vector<std::uint64_t> workspace(
      forward::split_workspace_bytes(problem, splits) / sizeof(std::uint64_t) + 64);
  auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  const forward::SplitForward steps =
      forward::split(problem, splits, reinterpret_cast<void*>((address + 255) / 256 * 256));
  const ForwardVariant& variant = *forward::choose_variant(steps.parts);
  for (const hw::sim::Policy policy :
       {hw::sim::Policy::eager, hw::sim::Policy::late, hw::sim::Policy::random}) {
    sim::Machine machine;
    machine.policy = policy;
    machine.seed = seed;
    const hw::sim::Report parts = sim::simulate_forward(steps.parts, variant, machine);
    ASSERT_TRUE(parts.ok()) << parts.text();
    const hw::sim::Report merged = sim::simulate_merge(steps.merge, machine);
    ASSERT_TRUE(merged.ok()) << merged.text();
    test::expect_near_oracle(problem, tensors);
  }
}

TEST(ForwardOnSimSplit, PartsOfTheKeysMergedEqualTheOracle) {
  for (std::uint64_t seed = 1; seed <= test::number_from_environment("TANDEM_SIM_RUNS", 4); ++seed)
    check_split(draw_split_case(seed), seed);
}

TEST(ForwardOnSimSplit, PartsOfNarrowValuesMergedEqualTheOracle) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    ForwardCase c = draw_split_case(seed);
    c.head_dim = 200 - 8 * static_cast<std::int64_t>(seed), c.value_dim = 128, c.softcap = 0;
    const core::ForwardProblem parts = forward::split(test::shapes_of(c), 2, nullptr).parts;
    ASSERT_TRUE(forward::choose_variant(parts)->has_narrow_values()) << c;
    check_split(c, seed);
  }
}

}  // namespace
}  // namespace tandem
