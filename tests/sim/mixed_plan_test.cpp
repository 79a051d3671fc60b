// Which calls of variable lengths have sequences that decode's body serves, and what is launched for them.
#include <gtest/gtest.h>

#include "api/hopper_mixed.h"
#include "core/listed_queries.h"
#include "decode/plan.h"
#include "forward/plan.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;

VarlenCase paged(std::vector<std::int64_t> q_lens) {
  VarlenCase c;
  c.q_lens = std::move(q_lens);
  c.k_lens.assign(c.q_lens.size(), 200);
  c.keys = KeyLayout::paged;
  c.q_heads = 4;
  c.mask = core::Mask::causal();
  return c;
}

bool has_few(const VarlenCase& c) { return api::few_queries_of(VarlenTensors(c).problem()).has_value(); }

TEST(MixedPlan, FewAreAsManyQueriesAsFillTheWidestTile) {
  EXPECT_EQ(core::few_queries(1), 32);
  EXPECT_EQ(core::few_queries(4), 8);
  EXPECT_EQ(core::few_queries(5), 6);
  EXPECT_EQ(core::few_queries(32), 1);
  EXPECT_EQ(core::few_queries(128), 1);
}

TEST(MixedPlan, WhatDecodesKernelsDontKnowStaysWithTheForward) {
  EXPECT_TRUE(has_few(paged({1, 300})));
  const auto without = [](auto change) {
    VarlenCase c = paged({1, 300});
    change(c);
    return !has_few(c);
  };
  EXPECT_TRUE(without([](VarlenCase& c) { c.mask.chunk = 100; }));
  EXPECT_TRUE(without([](VarlenCase& c) { c.slopes = true; }));
  EXPECT_TRUE(without([](VarlenCase& c) { c.tree = true; }));
  EXPECT_TRUE(without([](VarlenCase& c) { c.value_dim = 32; }));
  EXPECT_FALSE(without([](VarlenCase& c) { c.sinks = true; }));
  EXPECT_FALSE(without([](VarlenCase& c) { c.softcap = 20; }));
  EXPECT_FALSE(without([](VarlenCase& c) { c.new_lens = {1, 30}, c.rotary_dim = 32; }));
  const VarlenTensors tensors(paged({1, 300}));
  core::ForwardProblem by_name = tensors.problem();
  by_name.block_m = 128;
  EXPECT_FALSE(api::few_queries_of(by_name).has_value());
}

TEST(MixedPlan, PackedKeysArePromptsUnlessTheBoundSaysThatTheyAreNot) {
  VarlenCase c = paged({1, 300});
  c.keys = KeyLayout::packed;
  EXPECT_FALSE(has_few(c));
  c.q_lens = {1, 8};
  EXPECT_TRUE(has_few(c));
}

TEST(MixedPlan, EntriesOfQueriesAreAllFewOrNone) {
  VarlenCase c = paged({8, 8});
  c.q_packed = false;
  EXPECT_TRUE(has_few(c));
  c.q_lens = {9, 9};
  EXPECT_FALSE(has_few(c));
}

api::MixedLaunches launches(const VarlenTensors& tensors) {
  const core::ForwardProblem problem = tensors.problem();
  return api::launches_of(problem, *api::few_queries_of(problem), 132, nullptr);
}

TEST(MixedPlan, BoundsOfFewQueriesLaunchNoForward) {
  const VarlenTensors alone(paged({1, 8})), beside(paged({1, 9}));
  EXPECT_EQ(launches(alone).forward.blocks, 0);
  EXPECT_EQ(launches(alone).list.arguments.tile_blocks, 0);
  EXPECT_GT(launches(alone).list.blocks, 0);
  EXPECT_GT(launches(alone).step.blocks, 0);
  EXPECT_GT(launches(beside).forward.blocks, 0);
  EXPECT_GT(launches(beside).list.arguments.tile_blocks, 0);
}

// One launch fewer.
TEST(MixedPlan, WhatAppendsListsSequencesOfFewQueriesWhereThereAreNoTiles) {
  VarlenCase alone = paged({1, 8}), beside = paged({1, 9});
  alone.new_lens = {1, 8}, beside.new_lens = {1, 9};
  EXPECT_EQ(launches(VarlenTensors(alone)).list.blocks, 0);
  EXPECT_EQ(launches(VarlenTensors(alone)).append.arguments.few.most_queries, 8);
  EXPECT_GT(launches(VarlenTensors(beside)).list.blocks, 0);
  EXPECT_EQ(launches(VarlenTensors(beside)).append.arguments.few.most_queries, 0);
}

// One query: the tile that tandem_decode would take.
TEST(MixedPlan, TheTileHasRoomForTheBoundsRows) {
  for (const auto& [queries, rows] :
       {std::pair{1, 8}, {2, 8}, {3, 16}, {4, 16}, {5, 32}, {8, 32}, {300, 32}}) {
    const VarlenTensors tensors(paged({1, queries}));
    EXPECT_EQ(launches(tensors).step.variant.query_rows, rows) << queries;
  }
}

// Beside prompts most sequences have one query, whose rows are merged at once; drafts alone are many rows.
TEST(MixedPlan, OnlyWideTilesAloneAreMergedByAKernelOfTheirOwn) {
  const VarlenTensors one(paged({1, 1})), drafts(paged({1, 8})), beside(paged({1, 300}));
  EXPECT_EQ(launches(one).combine.blocks, 0);
  EXPECT_GT(launches(drafts).combine.blocks, 0);
  EXPECT_EQ(launches(beside).combine.blocks, 0);
}

TEST(MixedPlan, PartsOfTheWorkspaceDoNotOverlap) {
  VarlenCase c = paged({1, 300});
  c.rotary_dim = 32;
  const VarlenTensors tensors(c);
  const core::ForwardProblem problem = tensors.problem();
  const auto few = api::few_queries_of(problem);
  ASSERT_TRUE(few.has_value());
  const api::MixedLaunches all = api::launches_of(problem, *few, 132, nullptr);
  const auto begin = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  const std::uintptr_t list = begin(all.list.arguments.few.list),
                       counters = begin(all.step.arguments.counters);
  EXPECT_GE(list, forward::workspace_bytes(problem));
  EXPECT_EQ(all.step.arguments.listed, all.list.arguments.few.list);
  EXPECT_GE(counters, list + static_cast<std::size_t>(core::listed_words(2)) * sizeof(std::int32_t));
  EXPECT_EQ(begin(all.list.arguments.few.counters), counters);
  EXPECT_EQ(all.list.arguments.few.counter_count, decode::most_counters);
  EXPECT_EQ(api::mixed_workspace_bytes(problem, *few),
            counters + decode::workspace_bytes(few->step, *few->variant));
}

}  // namespace
}  // namespace tandem
