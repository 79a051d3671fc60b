// Which calls of variable lengths have sequences that decode's body serves, and what is launched for them.
#include <gtest/gtest.h>
#include <iterator>

#include "api/hopper_mixed.h"
#include "api/validate.h"
#include "core/listed_queries.h"
#include "decode/plan.h"
#include "forward/plan.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;

VarlenCase paged(const std::vector<std::int64_t>& q_lens) {
  return test::paged_case(q_lens, std::vector<std::int64_t>(q_lens.size(), 200));
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

/// Has what a step's kernels do not do for themselves.
VarlenCase needs_list(VarlenCase c) {
  c.keys = KeyLayout::packed;
  return c;
}

// Its kernels find sequences and their queries by themselves.
TEST(MixedPlan, BoundsOfFewQueriesAreAStepWithoutAList) {
  const VarlenTensors alone(paged({1, 8})), beside(paged({1, 9}));
  const api::MixedLaunches step = launches(alone);
  EXPECT_EQ(step.forward.blocks + step.list.blocks + step.append.blocks, 0);
  EXPECT_GT(step.step.blocks, 0);
  EXPECT_EQ(step.step.arguments.listed, nullptr);
  EXPECT_GT(launches(beside).forward.blocks, 0);
  EXPECT_GT(launches(beside).list.arguments.tile_blocks, 0);
  EXPECT_EQ(launches(beside).clear.blocks, 0) << "the list's kernel clears";
}

// Of streams that are not cut nobody counts parts.
TEST(MixedPlan, CountersAreClearedForAStepWhereTheyCount) {
  VarlenCase whole = paged(std::vector<std::int64_t>(132, 1)), cut = paged({1, 1});
  whole.q_heads = whole.kv_heads = 1, whole.k_lens.assign(132, 100);
  cut.k_lens.assign(2, 9000);
  EXPECT_EQ(launches(VarlenTensors(whole)).clear.blocks, 0);
  EXPECT_EQ(launches(VarlenTensors(cut)).clear.blocks, 1);
}

TEST(MixedPlan, AListIsForWhatAStepsKernelsDoNotKnow) {
  const auto lists = [](auto change) {
    VarlenCase c = paged({1, 8});
    change(c);
    const VarlenTensors tensors(c);
    return !api::few_queries_of(tensors.problem())->is_all();
  };
  EXPECT_FALSE(lists([](VarlenCase&) {}));
  EXPECT_FALSE(lists([](VarlenCase& c) { c.keys = KeyLayout::entries; }));
  EXPECT_FALSE(lists([](VarlenCase& c) { c.sinks = true, c.softcap = 20, c.split_size = 64; }));
  EXPECT_FALSE(lists([](VarlenCase& c) { c.new_lens = {1, 8}; }));
  EXPECT_FALSE(lists([](VarlenCase& c) { c.rotary_dim = 32; }));
  EXPECT_TRUE(lists([](VarlenCase& c) { c.keys = KeyLayout::packed; }));
  EXPECT_TRUE(lists([](VarlenCase& c) { c.keys = KeyLayout::entries, c.padding = {3, 0}; }));
  EXPECT_TRUE(lists([](VarlenCase& c) { c.keys = KeyLayout::entries, c.batch_index = true; }));
}

// What appends says how many keys there are, and clears the counters that are not a plan's.
TEST(MixedPlan, BehindWhatAppendsAStepHasTheLengthsThatItWrites) {
  for (const bool rotates_alone : {false, true}) {
    VarlenCase c = paged({1, 8});
    c.k_lens.assign(2, 9000);
    if (rotates_alone)
      c.rotary_dim = 32;
    else
      c.new_lens = {1, 8};
    const VarlenTensors tensors(c);
    const core::ForwardProblem problem = tensors.problem();
    const auto few = *api::few_queries_of(problem);
    auto* workspace = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
    const api::MixedLaunches all = api::launches_of(problem, few, 132, workspace);
    EXPECT_EQ(all.list.blocks + all.clear.blocks + all.forward.blocks, 0);
    const forward::FewArguments& own = all.append.arguments.few;
    EXPECT_GT(own.most_queries, 0);
    EXPECT_EQ(own.counters, all.step.arguments.counters);
    EXPECT_EQ(own.counter_count, decode::most_counters);
    EXPECT_EQ(own.lengths, all.step.arguments.lengths);
    const auto* lengths = reinterpret_cast<const std::byte*>(own.lengths);
    EXPECT_GE(lengths, workspace + forward::workspace_bytes(problem));
    EXPECT_LE(lengths + 2 * sizeof(std::int32_t), reinterpret_cast<const std::byte*>(own.counters));
    EXPECT_EQ(all.step.arguments.q.data == problem.q.data, !rotates_alone);
    EXPECT_EQ(api::mixed_workspace_bytes(problem, few),
              static_cast<std::size_t>(reinterpret_cast<const std::byte*>(own.counters) - workspace) +
                  decode::workspace_bytes(few.step, *few.variant));
    core::ForwardProblem planned = problem;
    planned.plan = reinterpret_cast<void*>(std::uintptr_t{1} << 41);
    const api::MixedLaunches with_plan = api::launches_of(planned, few, 132, workspace);
    EXPECT_EQ(with_plan.append.arguments.few.counter_count, 0);
    EXPECT_EQ(with_plan.append.arguments.few.lengths, own.lengths);
    EXPECT_EQ(static_cast<void*>(with_plan.step.arguments.counters), planned.plan);
  }
}

TEST(MixedPlan, NoTokensToAppendAreNoKernel) {
  const VarlenTensors tensors(paged({1, 8}));
  core::ForwardProblem problem = tensors.problem();
  problem.varlen.k_new = problem.varlen.v_new = problem.k;
  problem.varlen.k_new.shape[0] = 1, problem.varlen.k_new.shape[1] = 0;
  const api::MixedLaunches all = api::launches_of(problem, *api::few_queries_of(problem), 132, nullptr);
  EXPECT_EQ(all.append.blocks, 0);
  EXPECT_EQ(all.step.arguments.lengths, problem.varlen.seqused_k);
}

// One launch fewer.
TEST(MixedPlan, WhatAppendsListsSequencesOfFewQueriesWhereThereAreNoTiles) {
  VarlenCase alone = paged({1, 8}), beside = paged({1, 9});
  alone.new_lens = {1, 8}, beside.new_lens = {1, 9};
  alone.keys = KeyLayout::entries, alone.padding = {1, 0};
  EXPECT_EQ(launches(VarlenTensors(alone)).list.blocks, 0);
  EXPECT_EQ(launches(VarlenTensors(alone)).append.arguments.few.most_queries, 8);
  EXPECT_GT(launches(VarlenTensors(beside)).list.blocks, 0);
  EXPECT_EQ(launches(VarlenTensors(beside)).append.arguments.few.most_queries, 0);
}

TEST(MixedPlan, AStepOfOneQueryHasATileOfEightRows) {
  for (const std::int64_t keys : {100, 9000}) {
    VarlenCase c = paged(std::vector<std::int64_t>(40, 1));
    c.k_lens.assign(40, keys);
    EXPECT_EQ(launches(VarlenTensors(c)).step.variant.query_rows, 8) << keys;
  }
}

// Otherwise what lies behind a sequence's bound would be taken for a key.
TEST(MixedPlan, AStepOfQueriesInEntriesHasKeysUpToTheirEnd) {
  VarlenCase c = paged({1, 1});
  c.keys = KeyLayout::entries, c.q_packed = false;
  const VarlenTensors tensors(c);
  core::ForwardProblem problem = tensors.problem();
  problem.varlen.max_seqlen_k = problem.k.shape[1];
  EXPECT_TRUE(api::few_queries_of(problem)->is_all());
  problem.varlen.max_seqlen_k -= 1;
  EXPECT_FALSE(api::few_queries_of(problem)->is_all());
}

// In a tile that most sequences have, of one query.
TEST(MixedPlan, ListedSequencesArePricedByOneQuery) {
  VarlenCase one = paged({1, 300}), many = paged({1, 300});
  one.q_heads = 8, many.q_heads = 32;
  EXPECT_GT(launches(VarlenTensors(one)).list.arguments.few.share.speed_of_few,
            launches(VarlenTensors(many)).list.arguments.few.share.speed_of_few);
}

// Beside prompts most sequences have one query, whose rows are merged at once; drafts alone are many rows.
TEST(MixedPlan, OnlyWideTilesAloneAreMergedByAKernelOfTheirOwn) {
  const VarlenTensors one(needs_list(paged({1, 1}))), drafts(needs_list(paged({1, 8}))),
      beside(paged({1, 300}));
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

/// A batch as its bounds and its tensors show it.
struct Batch {
  std::int64_t sequences, rows, keys, max_seqlen_q, max_seqlen_k;
};

Batch draw_batch(test::Random& random) {
  const auto draw = [&random](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  const auto known = [&](std::int64_t most) { return random() % 2 == 0 ? draw(most) : 0; };
  const bool steps = random() % 3 == 0;  // each of few queries
  const std::int64_t sequences = draw(64);
  return {sequences, steps ? draw(4) * sequences : draw(40000), draw(random() % 2 == 0 ? 200 : 60000),
          steps ? draw(8) : known(9000), known(60000)};
}

/// The case's model and options with another batch, as the Hopper backend sees it. No memory is looked at.
core::ForwardProblem problem_of(const VarlenTensors& tensors, const Batch& batch) {
  test::VarlenCall call(tensors.problem(), test::to_c(tensors.setup.mask), TANDEM_BACKEND_HOPPER);
  for (tandem_tensor* rows : {&call.args.q, &call.args.o, &call.args.lse}) rows->shape[1] = batch.rows;
  if (tensors.setup.keys == KeyLayout::paged) {
    call.varlen.pages_per_sequence = batch.keys / tensors.setup.page_size + 1;
  } else {
    call.args.k.shape[1] = call.args.v.shape[1] = batch.keys;
  }
  call.varlen.batch = batch.sequences;
  call.varlen.max_seqlen_q = batch.max_seqlen_q, call.varlen.max_seqlen_k = batch.max_seqlen_k;
  core::ForwardProblem problem;
  const core::Status status = api::validate(&call.args, false, &problem);
  EXPECT_TRUE(status.ok()) << status.message();
  return forward::for_kernels(problem);
}

VarlenCase draw_model(test::Random& random) {
  static constexpr std::int64_t head_dims[] = {64, 96, 128, 192, 256, 40};
  VarlenCase c = paged({1, 2});
  c.k_lens = {2, 2};
  c.keys = random() % 2 == 0 ? KeyLayout::paged : KeyLayout::packed;
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = head_dims[random() % std::size(head_dims)];
  c.kv_heads = std::int64_t{1} << random() % 4, c.q_heads = c.kv_heads << random() % 6;
  c.mask = random() % 2 == 0 ? core::Mask::causal() : core::Mask::full();
  if (random() % 2 == 0) c.mask.left = static_cast<std::int64_t>(random() % 20000);
  if (random() % 4 == 0 && c.head_dim <= 192) c.mask.chunk = 1 + static_cast<std::int64_t>(random() % 20000);
  if (random() % 4 == 0) c.softcap = 20;
  return c;
}

/// What the kernels of two batches do alike, so that bits are the same.
struct Alike {
  bool forward, few;
};
Alike alike(const core::ForwardProblem& a, const core::ForwardProblem& b) {
  const auto few_a = api::few_queries_of(a), few_b = api::few_queries_of(b);
  if (few_a.has_value() != few_b.has_value())
    return {*forward::choose_variant(a) == *forward::choose_variant(b), false};
  const bool few = !few_a || (few_a->variant->block_n == few_b->variant->block_n &&
                              few_a->variant->merge_group() == few_b->variant->merge_group() &&
                              few_a->step.split_size == few_b->step.split_size);
  return {*forward::choose_variant(a) == *forward::choose_variant(b), few};
}

TEST(FixedSplits, ChooseKernelsOfTheSameBitsWhateverTheBatchAndItsBounds) {
  int others_of_forward = 0, others_of_few = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    test::Random random(seed);
    const VarlenCase free = draw_model(random);
    VarlenCase fixed = free;
    fixed.split_size = std::int64_t{64} << random() % 6;
    const Batch batches[] = {draw_batch(random), draw_batch(random)};
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << fixed);
    const VarlenTensors tensors(fixed), of_free(free);
    if (forward::choose_variant(tensors.problem()) == nullptr) continue;  // not built
    // First, so that a choice that is remembered could be taken for theirs.
    const Alike otherwise = alike(problem_of(of_free, batches[0]), problem_of(of_free, batches[1]));
    const Alike same = alike(problem_of(tensors, batches[0]), problem_of(tensors, batches[1]));
    EXPECT_TRUE(same.forward);
    EXPECT_TRUE(same.few);
    others_of_forward += otherwise.forward ? 0 : 1, others_of_few += otherwise.few ? 0 : 1;
  }
  EXPECT_GT(others_of_forward, 0) << "without, the batch chooses";
  EXPECT_GT(others_of_few, 0);
}

TEST(FixedSplits, HaveAPlaceForThePartialResultOfEachPart) {
  VarlenCase c = paged({1, 300});
  c.k_lens = {1000, 300};
  const VarlenTensors free(c);
  c.split_size = 128;
  const VarlenTensors fixed(c);
  const core::ForwardProblem problem = fixed.problem();
  const auto few = api::few_queries_of(problem);
  ASSERT_TRUE(few.has_value());
  constexpr std::int64_t parts = 2 * 8;  // of two sequences of one key/value head, at their longest
  EXPECT_EQ(decode::workspace_bytes(few->step, *few->variant),
            4096 + parts * few->variant->query_rows * (c.head_dim + 2) * sizeof(float));
  const api::MixedLaunches of_fixed = launches(fixed), of_free = launches(free);
  EXPECT_TRUE(of_fixed.step.arguments.fixed_splits);
  EXPECT_EQ(of_fixed.step.arguments.units.unit.value(), 128);
  EXPECT_EQ(of_fixed.combine.blocks, 0) << "parts are merged in the step";
  EXPECT_FALSE(of_free.step.arguments.fixed_splits);
}

TEST(FixedSplits, PackedKeysMayBelongToSequencesOfFewQueries) {
  VarlenCase c = paged({1, 300});
  c.keys = KeyLayout::packed;
  EXPECT_FALSE(has_few(c));
  c.split_size = 64;
  EXPECT_TRUE(has_few(c));
}

}  // namespace
}  // namespace tandem
