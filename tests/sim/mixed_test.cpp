// Calls of variable lengths whose sequences of few queries run decode's body, the others the forward's, on
// the software Hopper: against the oracle of each sequence.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <optional>
#include <ostream>
#include <vector>

#include "api/hopper_mixed.h"
#include "apps/sim/decode_sim.h"
#include "apps/sim/mixed_sim.h"
#include "decode/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/mixed_draws.h"
#include "tests/sim/simulated_forward.h"
#include "tests/sim/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::KeyLayout;
using test::paged_case;
using test::VarlenCase;
using test::VarlenTensors;

/// Runs the problem, whose workspace holds what others left: NaN, and numbers that are none.
void run_mixed(const core::ForwardProblem& problem, const api::FewQueries& few, const sim::Machine& machine) {
  test::Workspace memory;
  const std::span<std::byte> workspace = memory.of(api::mixed_workspace_bytes(problem, few));
  std::ranges::fill(workspace, std::byte{0xff});
  const hw::sim::Report report = sim::simulate_mixed(problem, few, workspace, machine);
  ASSERT_TRUE(report.ok()) << report.text();
}
void run_mixed(const core::ForwardProblem& problem, const sim::Machine& machine) {
  const auto few = api::few_queries_of(problem);
  ASSERT_TRUE(few.has_value());
  run_mixed(problem, *few, machine);
}

void expect_equal_to_the_oracle(const VarlenTensors& tensors) {
  const VarlenCase& c = tensors.setup;
  const test::VarlenValues values = test::varlen_values(tensors);
  EXPECT_TRUE(test::within_tolerance(values.result.o, values.standard.o, values.reference.o, c.dtype)) << "o";
  EXPECT_TRUE(test::others_untouched(tensors));
  EXPECT_EQ(tensors.cache_failure(), "");
  if (!c.lse) return;
  EXPECT_TRUE(
      test::within_tolerance(values.result.lse, values.standard.lse, values.reference.lse, TANDEM_FP32))
      << "lse";
}

struct Problem {
  const DecodeVariant& variant;
  VarlenCase c;

  void check(const sim::Machine& machine) const {
    const VarlenTensors tensors(c);
    const auto few = api::few_queries_of(tensors.problem());
    ASSERT_TRUE(few.has_value());
    ASSERT_EQ(*few->variant, variant);
    ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine));
    expect_equal_to_the_oracle(tensors);
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) { return out << problem.c; }
};

/// A call that is a step, by one of the kernels that may serve it.
struct PackedStep {
  const DecodeVariant& variant;
  VarlenCase c;

  void check(const sim::Machine& machine) const {
    const VarlenTensors tensors(c);
    auto few = api::few_queries_of(tensors.problem());
    ASSERT_TRUE(few.has_value());
    ASSERT_TRUE(few->is_all());
    few->variant = &variant;
    ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), *few, machine));
    expect_equal_to_the_oracle(tensors);
  }

  friend std::ostream& operator<<(std::ostream& out, const PackedStep& step) { return out << step.c; }
};

class PackedStepOnSim : public testing::TestWithParam<DecodeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, PackedStepOnSim,
                         testing::ValuesIn(sim::decode_variants(decode::Queries::listed)),
                         test::test_name<DecodeVariant>);

TEST_P(PackedStepOnSim, EachSequenceEqualsItsOracleUnderEveryPolicy) {
  test::for_each_run("sim_mixed_test --gtest_filter=Variants/PackedStepOnSim", 5, [](std::uint64_t seed) {
    return PackedStep{GetParam(), test::draw_packed_step(GetParam(), seed)};
  });
}

class MixedOnSim : public testing::TestWithParam<DecodeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, MixedOnSim, testing::ValuesIn(test::listing_variants()),
                         test::test_name<DecodeVariant>);

/// A call's layers: the same lengths, other numbers.
struct Layers {
  VarlenCase c;

  void check(const sim::Machine& machine) const {
    const VarlenTensors first(c);
    const auto few = api::few_queries_of(first.problem());
    ASSERT_TRUE(few.has_value());
    test::Workspace memory;
    const std::span<std::byte> plan = memory.of(api::mixed_plan_bytes(first.problem(), *few));
    std::ranges::fill(plan, std::byte{0xff});
    const hw::sim::Report report = sim::simulate_mixed_plan(first.problem(), *few, plan, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      VarlenCase own = c;
      if (!c.batch_index) own.seed = c.seed + layer;  // entries are drawn by it
      const VarlenTensors tensors(own);
      core::ForwardProblem problem = tensors.problem();
      problem.plan = plan.data();
      ASSERT_NO_FATAL_FAILURE(run_mixed(problem, machine));
      SCOPED_TRACE(testing::Message() << "layer " << layer);
      expect_equal_to_the_oracle(tensors);
    }
  }

  friend std::ostream& operator<<(std::ostream& out, const Layers& layers) { return out << layers.c; }
};

/// Of larger head dims lists and counters are the same.
std::vector<DecodeVariant> of_head_dim_64(std::vector<DecodeVariant> variants) {
  std::erase_if(variants, [](const DecodeVariant& v) { return v.head_dim > 64; });
  return variants;
}

class LayersOnSim : public testing::TestWithParam<DecodeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, LayersOnSim, testing::ValuesIn(of_head_dim_64(test::listing_variants())),
                         test::test_name<DecodeVariant>);

TEST_P(LayersOnSim, ShareThePlanOfAMixedBatch) {
  test::for_each_run("sim_mixed_test --gtest_filter=Variants/LayersOnSim", 5,
                     [](std::uint64_t seed) { return Layers{test::draw_mixed_case(GetParam(), seed)}; });
}

TEST_P(LayersOnSim, ShareThePlanOfAStep) {
  test::for_each_run("sim_mixed_test --gtest_filter=Variants/LayersOnSim", 5,
                     [](std::uint64_t seed) { return Layers{test::draw_packed_step(GetParam(), seed)}; });
}

TEST_P(MixedOnSim, EachSequenceEqualsItsOracleUnderEveryPolicy) {
  test::for_each_run("sim_mixed_test --gtest_filter=Variants/MixedOnSim", 5, [](std::uint64_t seed) {
    return Problem{GetParam(), test::draw_mixed_case(GetParam(), seed)};
  });
}

void count_lengths(test::Coverage& coverage, const std::string& kind,
                   const std::vector<std::int64_t>& lengths, std::int64_t few) {
  const auto has = [&](auto is) { return std::ranges::any_of(lengths, is); };
  coverage.count(kind, "no queries", has([](std::int64_t n) { return n == 0; }));
  coverage.count(kind, "one query", has([](std::int64_t n) { return n == 1; }));
  coverage.count(kind, "as many as are few", has([few](std::int64_t n) { return n == few; }));
}

void count_features(test::Coverage& coverage, const std::string& kind, const VarlenCase& c) {
  const std::int64_t group = c.q_heads / c.kv_heads, few = core::few_queries(group);
  const auto has = [](const std::vector<std::int64_t>& lengths, auto is) {
    return std::ranges::any_of(lengths, is);
  };
  count_lengths(coverage, kind, c.q_lens, few);
  coverage.count(kind, "no keys", has(c.k_lens, [](std::int64_t n) { return n == 0; }));
  coverage.count(kind, "more sequences than lanes", c.q_lens.size() > 32);
  coverage.count(kind, "one head a key head", group == 1);
  coverage.count(kind, "more than two key heads' rows", group > 2);
  coverage.count(kind, "keys in entries", c.keys == KeyLayout::entries);
  coverage.count(kind, "padding", !c.padding.empty());
  coverage.count(kind, "indexed entries", c.batch_index);
  coverage.count(kind, "appended", c.appends());
  coverage.count(kind, "rotated", c.rotary_dim > 0);
  coverage.count(kind, "a window", c.mask.left != core::Mask::unlimited);
  coverage.count(kind, "keys to the right", c.mask.right > 0 && c.mask.right != core::Mask::unlimited);
  coverage.count(kind, "softcap", c.softcap > 0);
  coverage.count(kind, "sinks", c.sinks);
  coverage.count(kind, "lse", c.lse);
  coverage.count(kind, "fixed splits", c.split_size > 0);
  coverage.count(kind, "padded head dims", c.head_dim % 64 != 0);
  if (kind == "beside") {
    coverage.count(kind, "keys in pages", c.keys == KeyLayout::paged);
    coverage.count(kind, "one more than few", has(c.q_lens, [few](std::int64_t n) { return n == few + 1; }));
  } else {
    coverage.count(kind, "keys packed", c.keys == KeyLayout::packed);
    coverage.count(kind, "queries in entries", !c.q_packed);
  }
}

TEST(PackedStepDraws, HaveEveryFeature) {
  test::Coverage coverage;
  test::for_each_draw("EachSequenceEqualsItsOracleUnderEveryPolicy",
                      sim::decode_variants(decode::Queries::listed),
                      [&](const DecodeVariant& v, std::uint64_t seed) {
                        const VarlenCase c = test::draw_packed_step(v, seed);
                        const char* kind = "packed";
                        count_lengths(coverage, kind, c.q_lens, core::few_queries(c.q_heads / c.kv_heads));
                        coverage.count(kind, "keys in pages", c.keys == KeyLayout::paged);
                        coverage.count(kind, "keys in entries", c.keys == KeyLayout::entries);
                        coverage.count(kind, "appended", c.appends() && c.rotary_dim == 0);
                        coverage.count(kind, "rotated", !c.appends() && c.rotary_dim > 0);
                        coverage.count(kind, "appended and rotated", c.appends() && c.rotary_dim > 0);
                        coverage.count(kind, "a window", c.mask.left != core::Mask::unlimited);
                        coverage.count(kind, "sinks", c.sinks);
                        coverage.count(kind, "lse", c.lse);
                        coverage.count(kind, "softcap", c.softcap > 0);
                        coverage.count(kind, "more sequences than lanes", c.q_lens.size() > 32);
                      });
  EXPECT_EQ(coverage.missing(), "");
}

TEST(MixedDraws, HaveEveryFeatureAloneAndBesideOthers) {
  test::Coverage coverage;
  test::for_each_draw("EachSequenceEqualsItsOracleUnderEveryPolicy", test::listing_variants(),
                      [&](const DecodeVariant& v, std::uint64_t seed) {
                        const VarlenCase c = test::draw_mixed_case(v, seed);
                        const auto few = api::few_queries_of(VarlenTensors(c).problem());
                        ASSERT_TRUE(few.has_value());
                        count_features(coverage, few->step.listed.alone ? "alone" : "beside", c);
                      });
  EXPECT_EQ(coverage.missing(), "");
}

sim::Machine machine_of(int multiprocessors) {
  sim::Machine machine;
  machine.multiprocessors = multiprocessors;
  return machine;
}

/// The launches of a call that has run, whose lists lie in `memory`.
std::optional<api::MixedLaunches> simulated_launches(const core::ForwardProblem& problem, int multiprocessors,
                                                     test::Workspace& memory) {
  const auto few = api::few_queries_of(problem);
  if (!few.has_value()) return std::nullopt;
  const std::span<std::byte> workspace = memory.of(api::mixed_workspace_bytes(problem, *few));
  const hw::sim::Report report = sim::simulate_mixed(problem, *few, workspace, machine_of(multiprocessors));
  EXPECT_TRUE(report.ok()) << report.text();
  if (!report.ok()) return std::nullopt;
  return api::launches_of(problem, *few, multiprocessors, workspace.data());
}

// Outputs would be the same, and made twice.
TEST(MixedOnSimList, SequencesOfFewQueriesHaveNoTiles) {
  const VarlenTensors tensors(paged_case({1, 8, 9, 0, 300}, {40, 50, 20, 10, 300}));  // 8 are few
  test::Workspace memory;
  const auto launches = simulated_launches(tensors.problem(), 2, memory);
  ASSERT_TRUE(launches.has_value());
  const api::MixedLaunches& all = *launches;
  const int tile_queries = all.list.arguments.tile_queries.value(),
            packs = all.list.arguments.forward.varlen.packs;
  const auto tiles_of = [tile_queries](int queries) { return (queries + tile_queries - 1) / tile_queries; };
  const std::int32_t* tiles = all.list.arguments.forward.varlen.tile_list;
  EXPECT_EQ(tiles[0], packs * (tiles_of(9) + tiles_of(300)));
  EXPECT_EQ(all.list.arguments.few.list[0], 2);
}

// With fewer, results would be the same, and late.
TEST(MixedOnSimList, AloneItIsSharedByAllBlocks) {
  VarlenCase c = paged_case({1, 8, 0, 3}, {900, 50, 20, 10});
  c.keys = KeyLayout::entries, c.batch_index = true;  // so it needs one
  for (const bool appends : {true, false}) {
    c.new_lens.clear();
    if (appends) c.new_lens = {1, 8, 0, 3};
    const VarlenTensors tensors(c);
    test::Workspace memory;
    const auto all = simulated_launches(tensors.problem(), 3, memory);
    ASSERT_TRUE(all.has_value());
    EXPECT_EQ(all->step.arguments.listed[0], 3);
    EXPECT_EQ(all->step.arguments.listed[1], all->step.blocks);
    EXPECT_GT(all->step.blocks, 1);
  }
}

// Who begins at once has the places of its number; each block is told once that there is no more. Only then
// is the counter 0 again, for the next call with this list.
TEST(MixedOnSimList, EachTileIsHandedOutOnce) {
  for (const std::int64_t keys : {1, 40, 4000}) {  // of the step: it has none of the chip, a part, or most
    const VarlenTensors tensors(paged_case({1, 500, 1, 300, 700}, {keys, 500, keys, 900, 700}));
    test::Workspace memory;
    const auto all = simulated_launches(tensors.problem(), 3, memory);
    ASSERT_TRUE(all.has_value());
    const std::int32_t* list = all->list.arguments.forward.varlen.tile_list;
    EXPECT_EQ(list[2], 0) << keys << " keys: the last one that asks has not cleared it";
  }
}

// Warps list 32 sequences each; of the first block one shares the chip.
TEST(MixedOnSimList, OfMoreSequencesThanABlockListsKeepsTheirOrder) {
  VarlenCase c = paged_case({}, {});
  for (std::int64_t i = 0; i < 300; ++i)
    c.q_lens.push_back(i % 7 == 3 ? 0 : i % 5), c.k_lens.push_back(1 + i % 23);
  c.q_lens[40] = 20, c.k_lens[40] = 30;
  const VarlenTensors tensors(c);
  ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine_of(3)));
  expect_equal_to_the_oracle(tensors);
}

// Shares of the grid begin within them, so that parts are merged.
TEST(MixedOnSimSplit, KeysOfOneSequenceGoToAllMultiprocessors) {
  for (const std::int64_t prompt : {0, 100}) {
    const VarlenTensors tensors(paged_case({1, 5, prompt}, {1500, 700, 130}));
    ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine_of(6)));
    expect_equal_to_the_oracle(tensors);
  }
}

TEST(MixedOnSimSplit, LongStepsHaveTeamsOfTheirOwn) {
  VarlenCase c = paged_case({1, 1}, {1500, 700});
  c.kv_heads = 2;
  sim::Machine machine = machine_of(5);
  machine.long_steps = true;
  const VarlenTensors tensors(c);
  ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine));
  expect_equal_to_the_oracle(tensors);
}

// Kernels of steps of one length, which read no cu_seqlens.
TEST(MixedOnSim, StepsOfQueriesInEntriesComeBehindWhatAppends) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    test::Random random(seed);
    const auto queries = static_cast<std::int64_t>(1 + random() % 3);
    VarlenCase c = paged_case({queries, queries, queries}, {700, queries + 3, 130});
    c.seed = seed, c.q_packed = false, c.rotary_dim = seed % 3 == 0 ? 0 : 32;
    c.keys = seed % 2 == 0 ? KeyLayout::paged : KeyLayout::entries;
    if (seed % 3 != 1) c.new_lens.assign(3, queries), c.new_packed = random() % 2 == 0;
    SCOPED_TRACE(testing::Message() << c);
    const VarlenTensors tensors(c);
    core::ForwardProblem problem = tensors.problem();
    // A bound below the room would need a list.
    const bool paged = c.keys == KeyLayout::paged;
    problem.varlen.max_seqlen_k = problem.k.shape[1] * (paged ? problem.varlen.pages_per_sequence : 1);
    ASSERT_TRUE(api::few_queries_of(problem)->is_all());
    ASSERT_NO_FATAL_FAILURE(run_mixed(problem, machine_of(1 + static_cast<int>(seed))));
    expect_equal_to_the_oracle(tensors);
  }
}

TEST(MixedOnSimSplit, NobodyHasFewQueries) {
  const VarlenTensors tensors(paged_case({100, 0, 70}, {100, 50, 300}));
  ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine_of(2)));
  expect_equal_to_the_oracle(tensors);
}

TEST(MixedOnSimSplit, OneQueryOfMoreHeadsThanAWidestTileHasRows) {
  VarlenCase c = paged_case({1, 100, 1}, {400, 130, 3});
  c.q_heads = 40;
  const VarlenTensors tensors(c);
  ASSERT_NO_FATAL_FAILURE(run_mixed(tensors.problem(), machine_of(3)));
  expect_equal_to_the_oracle(tensors);
}

/// Lengths and pages that do not exist.
void make_wild(VarlenTensors& t) {
  t.cu_seqlens_q.front() = INT32_MIN, t.cu_seqlens_q.back() = INT32_MAX;  // no two may have one row
  t.seqused_k[1] = INT32_MAX, t.seqused_k[2] = -5, t.seqused_k[4] = 1'000'000;
  if (t.setup.keys != KeyLayout::paged) return;
  for (std::int32_t& page : t.page_table) page = page < 0 ? -1 : page;
  t.page_table[0] = INT32_MAX, t.page_table[static_cast<std::size_t>(3 * t.pages_per_sequence)] = -7;
}

// The simulator says so where an access leaves the tensors.
TEST(MixedOnSim, WildNumbersLeadNowhere) {
  for (const KeyLayout keys : {KeyLayout::entries, KeyLayout::paged})
    for (const bool appends : {false, true})
      for (const std::int64_t most : {8, 20}) {  // all are few, or a list says which are
        VarlenCase c = paged_case({1, 3, most, 1, 0, 8, 1}, {300, 40, 50, 10, 90, 20, 128});
        c.keys = keys;
        if (appends) c.new_lens = c.q_lens, c.rotary_dim = 32;
        SCOPED_TRACE(testing::Message() << c);
        VarlenTensors tensors(c);
        make_wild(tensors);
        run_mixed(tensors.problem(), machine_of(3));
      }
}

// Its places would lead out of these tensors.
TEST(MixedOnSim, WithAPlanForOtherShapesNothingIsWritten) {
  const VarlenTensors larger(paged_case({1, 3, 300, 8}, {300, 40, 500, 90}));
  const auto few = api::few_queries_of(larger.problem());
  ASSERT_TRUE(few.has_value());
  test::Workspace memory;
  const std::span<std::byte> plan = memory.of(api::mixed_plan_bytes(larger.problem(), *few));
  const hw::sim::Report planned = sim::simulate_mixed_plan(larger.problem(), *few, plan, machine_of(3));
  ASSERT_TRUE(planned.ok()) << planned.text();
  const VarlenTensors tensors(paged_case({1, 3, 30, 8}, {300, 40, 50, 90}));
  core::ForwardProblem problem = tensors.problem();
  problem.plan = plan.data();
  ASSERT_NO_FATAL_FAILURE(run_mixed(problem, machine_of(3)));
  EXPECT_TRUE(tensors.o.untouched());
}

// Of one workspace, whatever the call before it left there.
TEST(MixedOnSim, AWorkspaceServesCallsOfAnyLengths) {
  test::Workspace memory;
  for (const auto& [q_lens, k_lens] :
       {std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>{{1, 4, 40}, {900, 30, 40}},
        {{8, 0, 100}, {20, 600, 100}}}) {
    const VarlenTensors tensors(paged_case(q_lens, k_lens));
    const core::ForwardProblem problem = tensors.problem();
    const auto few = api::few_queries_of(problem);
    ASSERT_TRUE(few.has_value());
    const hw::sim::Report report = sim::simulate_mixed(
        problem, *few, memory.of(api::mixed_workspace_bytes(problem, *few)), machine_of(4));
    ASSERT_TRUE(report.ok()) << report.text();
    expect_equal_to_the_oracle(tensors);
  }
}

// What the call before listed beyond this one's would write rows of this one's sequences.
TEST(MixedOnSim, OfALongerListNothingIsLeft) {
  test::Workspace memory;
  std::size_t bytes = 0;
  for (const std::vector<std::int64_t>& q_lens :
       {std::vector<std::int64_t>{3, 5, 2, 100, 4}, std::vector<std::int64_t>{8, 100, 0, 6, 0}}) {
    const VarlenTensors tensors(paged_case(q_lens, {70, 60, 50, 100, 40}));
    const core::ForwardProblem problem = tensors.problem();
    const auto few = api::few_queries_of(problem);
    ASSERT_TRUE(few.has_value());
    ASSERT_TRUE(bytes == 0 || bytes == api::mixed_workspace_bytes(problem, *few)) << "lists lie elsewhere";
    bytes = api::mixed_workspace_bytes(problem, *few);
    const hw::sim::Report report = sim::simulate_mixed(problem, *few, memory.of(bytes), machine_of(4));
    ASSERT_TRUE(report.ok()) << report.text();
    expect_equal_to_the_oracle(tensors);
  }
}

}  // namespace
}  // namespace tandem
