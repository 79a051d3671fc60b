// Plans of the forward, which layers share: what they have, whose calls take them, and what is launched with
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "api/hopper_mixed.h"
#include "core/listed_queries.h"
#include "decode/few_queries.h"
#include "decode/plan.h"
#include "forward/listed_tile.h"
#include "forward/plan.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using core::ForwardProblem;
using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;
using testing::HasSubstr;

/// Of queries: many and few, few alone, few that are a step, or keys of prompts alone.
VarlenCase case_of(const std::vector<std::int64_t>& q_lens, bool appends = false) {
  VarlenCase c = test::paged_case(q_lens, std::vector<std::int64_t>(q_lens.size(), 400));
  if (appends) c.new_lens = c.q_lens;
  return c;
}

ForwardProblem with_plan(ForwardProblem problem, std::uintptr_t address) {
  problem.plan = reinterpret_cast<void*>(address);
  return problem;
}

constexpr std::uintptr_t plan_address = std::uintptr_t{1} << 40, workspace_address = std::uintptr_t{1} << 41;

api::MixedLaunches launches_with_plan(const ForwardProblem& problem) {
  return api::launches_of(with_plan(problem, plan_address), *api::few_queries_of(problem), 132,
                          reinterpret_cast<void*>(workspace_address));
}
api::PlanLaunches planning(const ForwardProblem& problem) {
  return api::planning_launches_of(problem, *api::few_queries_of(problem), 132,
                                   reinterpret_cast<void*>(plan_address));
}

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

TEST(SharedPlan, ACallWithOneListsAndClearsNothing) {
  for (const bool appends : {false, true})
    for (const std::int64_t longest : {8, 9}) {  // 8 are few
      VarlenCase c = case_of({1, longest}, appends);
      c.keys = KeyLayout::entries, c.padding = {1, 0};  // a list is needed
      const VarlenTensors tensors(c);
      const api::MixedLaunches all = launches_with_plan(tensors.problem());
      EXPECT_EQ(all.list.blocks + all.clear.blocks, 0);
      EXPECT_EQ(all.append.blocks > 0, appends);
      EXPECT_EQ(all.append.arguments.few.most_queries, 0) << "it lists nothing besides";
      EXPECT_GT(all.step.blocks, 0);
      EXPECT_EQ(all.forward.blocks > 0, longest == 9);
    }
}

TEST(SharedPlan, TheListsOfACallLieInItAndPartialsInTheWorkspace) {
  const VarlenTensors tensors(case_of({1, 300}, true));
  const ForwardProblem problem = tensors.problem();
  const auto few = *api::few_queries_of(problem);
  const api::MixedLaunches all = launches_with_plan(problem);
  const api::PlanLaunches plan = planning(problem);
  EXPECT_EQ(plan.clear.blocks, 0);
  EXPECT_GT(plan.list.arguments.tile_blocks, 0);
  const forward::ListArguments& list = plan.list.arguments;
  EXPECT_EQ(address_of(list.forward.varlen.tile_list), plan_address);
  EXPECT_EQ(list.forward.varlen.tile_list, all.forward.arguments.varlen.tile_list);
  EXPECT_GE(address_of(list.few.list), plan_address + forward::plan_bytes(problem));
  EXPECT_EQ(list.few.list, all.step.arguments.listed);
  EXPECT_GE(address_of(list.few.counters),
            address_of(list.few.list + core::listed_words(problem.varlen.sequences)));
  EXPECT_EQ(list.few.counters, all.step.arguments.counters);
  EXPECT_EQ(address_of(list.few.counters) + decode::counter_bytes,
            plan_address + api::mixed_plan_bytes(problem, few));
  EXPECT_EQ(list.few.step_blocks, all.step.blocks);
  EXPECT_EQ(list.grid, all.forward.blocks);
  EXPECT_GE(address_of(all.step.arguments.partials), workspace_address);
  EXPECT_LT(address_of(all.step.arguments.partials),
            workspace_address + api::mixed_workspace_bytes(problem, few));
}

// Its blocks would begin while the layer ahead ends, two on each multiprocessor that is free, and few would
// read.
TEST(SharedPlan, AStepBesideTilesThatComesFirstWaitsForTheKernelAhead) {
  for (const bool appends : {false, true})
    for (const std::int64_t longest : {8, 9}) {
      const VarlenTensors tensors(case_of({1, longest}, appends));
      const ForwardProblem problem = tensors.problem();
      const auto few = *api::few_queries_of(problem);
      EXPECT_EQ(launches_with_plan(problem).step.starts_early, appends || longest == 8);
      EXPECT_TRUE(
          api::launches_of(problem, few, 132, reinterpret_cast<void*>(workspace_address)).step.starts_early);
    }
}

TEST(SharedPlan, OfAStepHasCountersAlone) {
  const VarlenTensors tensors(case_of({1, 8}));
  const ForwardProblem problem = tensors.problem();
  const api::PlanLaunches plan = planning(problem);
  EXPECT_EQ(plan.list.blocks, 0);
  EXPECT_EQ(plan.clear.blocks, 1);
  EXPECT_EQ(address_of(plan.clear.arguments.counters), plan_address);
  EXPECT_EQ(launches_with_plan(problem).step.arguments.counters, plan.clear.arguments.counters);
  EXPECT_EQ(api::forward_plan_bytes(problem), decode::counter_bytes);
}

// Where nothing is appended the kernel that lists tiles lists them.
TEST(SharedPlan, SequencesOfFewQueriesAloneHaveNoTilesInIt) {
  VarlenCase c = case_of({1, 8}, true);
  c.keys = KeyLayout::entries, c.padding = {1, 0};
  const VarlenTensors tensors(c);
  const ForwardProblem problem = tensors.problem();
  const api::PlanLaunches plan = planning(problem);
  EXPECT_EQ(plan.list.arguments.tile_blocks, 0);
  EXPECT_GT(plan.list.blocks, 0);
  EXPECT_EQ(address_of(plan.list.arguments.few.list), plan_address);
  EXPECT_LT(api::forward_plan_bytes(problem), decode::counter_bytes + 1024);
}

TEST(SharedPlan, OfPromptsHasTilesAlone) {
  VarlenCase c = case_of({1, 300});
  c.keys = KeyLayout::packed;
  const VarlenTensors tensors(c);
  const ForwardProblem problem = tensors.problem();
  ASSERT_FALSE(api::few_queries_of(problem).has_value());
  EXPECT_EQ(api::forward_plan_bytes(problem),
            static_cast<std::size_t>(
                forward::tile_list_words(forward::tile_count(problem, *forward::choose_variant(problem)))) *
                sizeof(std::int32_t));
}

TEST(SharedPlan, CallsOfOneLengthHaveOneWhereTheyNeedAList) {
  test::ForwardCase c;
  c.q_len = 300, c.k_len = 300;
  ForwardProblem problem = with_plan(test::shapes_of(c), 1);
  EXPECT_EQ(forward::for_kernels(problem).plan, nullptr) << "where there is none it may be anything";
  EXPECT_EQ(api::forward_plan_bytes(forward::for_kernels(problem)), 0U);
  const float sink = 0;
  problem.sinks = &sink;
  EXPECT_EQ(forward::for_kernels(problem).plan, problem.plan);
  EXPECT_GT(api::forward_plan_bytes(forward::for_kernels(problem)), 0U);
}

// Of all that a list's places and numbers of rows depend on but the lengths themselves.
TEST(SharedPlan, CallsOfOtherShapesDoNotTakeIt) {
  const VarlenTensors tensors(case_of({1, 300}));
  const ForwardProblem base = tensors.problem();
  const auto key_of = [](const ForwardProblem& p) {
    return forward::key_of_list(p, *forward::choose_variant(p));
  };
  std::set<std::uint32_t> keys = {key_of(base)};
  const auto expect_another = [&](auto change, const char* what) {
    ForwardProblem changed = base;
    change(changed);
    EXPECT_TRUE(keys.insert(key_of(changed)).second) << what;
  };
  const std::int32_t numbers[8] = {};
  expect_another([](ForwardProblem& p) { p.q.shape[1] -= 1; }, "rows of q");
  expect_another([](ForwardProblem& p) { p.q.shape[0] += 1; }, "entries of q");
  expect_another([](ForwardProblem& p) { p.k.shape[0] -= 1; }, "pages");
  expect_another([](ForwardProblem& p) { p.k.shape[1] *= 2; }, "their size");
  expect_another([](ForwardProblem& p) { p.varlen.pages_per_sequence += 1; }, "slots");
  expect_another([](ForwardProblem& p) { p.varlen.sequences -= 1; }, "sequences");
  expect_another([](ForwardProblem& p) { p.varlen.max_seqlen_q -= 1; }, "a bound of queries");
  expect_another([](ForwardProblem& p) { p.varlen.max_seqlen_k -= 1; }, "a bound of keys");
  expect_another([](ForwardProblem& p) { p.q.shape[2] *= 2; }, "heads");
  expect_another([](ForwardProblem& p) { p.mask.left = 7; }, "a window");
  expect_another([](ForwardProblem& p) { p.block_m = 128, p.block_n = 128; }, "a tile");
  expect_another([](ForwardProblem& p) { p.varlen.page_table = nullptr; }, "no pages");
  expect_another([](ForwardProblem& p) { p.varlen.cu_seqlens_q = nullptr; }, "entries of queries");
  expect_another([](ForwardProblem& p) { p.varlen.seqused_k = nullptr; }, "all keys in use");
  expect_another([&](ForwardProblem& p) { p.varlen.cu_seqlens_k = numbers; }, "packed keys");
  expect_another([&](ForwardProblem& p) { p.varlen.leftpad_k = numbers; }, "padding");
  expect_another([&](ForwardProblem& p) { p.varlen.batch_index = numbers; }, "an index");
  expect_another([&](ForwardProblem& p) { p.varlen.k_new = p.k; }, "appended keys");
  expect_another([&](ForwardProblem& p) { p.varlen.k_new = p.k, p.varlen.k_new.shape[1] += 1; },
                 "more of them");
  expect_another([&](ForwardProblem& p) { p.varlen.k_new = p.k, p.varlen.cu_seqlens_k_new = numbers; },
                 "packed ones");
  ForwardProblem same = base;
  same.q.data = same.k.data = same.o.data = nullptr, same.scale = 7, same.varlen.page_table_stride += 3;
  EXPECT_EQ(key_of(same), key_of(base)) << "of another layer";
}

TEST(SharedPlan, BothKernelsThatReadListsHaveItsKey) {
  const VarlenTensors tensors(case_of({1, 300}));
  const ForwardProblem problem = tensors.problem();
  const api::MixedLaunches all = launches_with_plan(problem);
  const std::uint32_t key = all.step.arguments.listed_key;
  EXPECT_EQ(all.forward.arguments.varlen.list_key, key);
  EXPECT_EQ(planning(problem).list.arguments.forward.varlen.list_key, key);
  EXPECT_NE(key, forward::key_of_list(problem, *forward::choose_variant(problem)))
      << "of a call whose sequences of few queries have tiles";
}

// The append's kernel lists in a call without a plan, where there are no tiles.
TEST(SharedPlan, WhoListsForACallSaysSo) {
  for (const std::int64_t longest : {8, 9}) {
    VarlenCase c = case_of({1, longest}, true);
    c.keys = KeyLayout::entries, c.padding = {1, 0};
    const VarlenTensors tensors(c);
    const ForwardProblem problem = tensors.problem();
    const api::MixedLaunches all = api::launches_of(problem, *api::few_queries_of(problem), 132,
                                                    reinterpret_cast<void*>(workspace_address));
    EXPECT_EQ(all.append.arguments.varlen.list_key, all.step.arguments.listed_key);
    if (longest == 9) {
      EXPECT_EQ(all.list.arguments.forward.varlen.list_key, all.step.arguments.listed_key);
    }
  }
}

std::string message_of_plan(const ForwardProblem& problem, std::uintptr_t address) {
  return std::string(api::check_forward_plan(with_plan(problem, address)).message());
}

TEST(SharedPlan, LiesAtMultiplesOf256BytesAndApartFromTensors) {
  const VarlenTensors tensors(case_of({1, 300}));
  const ForwardProblem problem = tensors.problem();
  EXPECT_EQ(message_of_plan(problem, 0), "");
  EXPECT_EQ(message_of_plan(problem, plan_address), "");
  EXPECT_THAT(message_of_plan(problem, plan_address + 128),
              HasSubstr("plan is 0x10000000080, which is not aligned to 256 bytes; pass what "
                        "tandem_forward_plan wrote to"));
  const std::uintptr_t q = address_of(problem.q.data) / 256 * 256;
  EXPECT_THAT(message_of_plan(problem, q), HasSubstr("overlap those of")) << "calls count in it";
  EXPECT_THAT(message_of_plan(problem, std::uintptr_t{0} - 256), HasSubstr("out of the address space"));
}

// A launch fewer for few queries in one call of a length.
TEST(SharedPlan, NobodyCountsPartsThatAnotherKernelMerges) {
  const auto step_of = [](std::int64_t batch) {
    test::ForwardCase c;
    c.batch = batch, c.q_heads = c.kv_heads = 16, c.q_len = 54, c.k_len = 2014, c.head_dim = 112;
    const core::DecodeProblem step = *decode::step_of(test::shapes_of(c));
    return decode::make_record(step, *decode::choose_variant(step), 132,
                               reinterpret_cast<void*>(workspace_address));
  };
  const auto apart = step_of(2), counted = step_of(1);
  ASSERT_TRUE(apart.arguments.merges_apart && !counted.arguments.merges_apart);
  EXPECT_FALSE(decode::counts_parts(apart));
  EXPECT_TRUE(decode::counts_parts(counted));
}

}  // namespace
}  // namespace tandem
