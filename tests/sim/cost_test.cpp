// The cost model of the forward, by itself, and the way of a call that it decides.
#include "forward/cost.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <limits>

#include "api/hopper_route.h"
#include "core/hopper.h"
#include "forward/plan.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using forward::CostEstimate;
using forward::ForwardVariant;

ForwardCase shape(std::int64_t batch, std::int64_t heads, std::int64_t q_len, std::int64_t k_len,
                  std::int64_t head_dim) {
  ForwardCase c;
  c.batch = batch, c.q_heads = c.kv_heads = heads, c.q_len = q_len, c.k_len = k_len, c.head_dim = head_dim;
  return c;
}

CostEstimate cost_of(const ForwardCase& c) { return forward::estimate_chosen(shapes_of(c)); }

TEST(Cost, CountsTilesAndKeyBlocks) {
  ForwardCase c = shape(2, 3, 1000, 1000, 128);
  c.block_m = 128, c.block_n = 128;
  const CostEstimate full = cost_of(c);
  EXPECT_EQ(full.tiles, 2 * 3 * 8);
  EXPECT_EQ(full.key_blocks, 8);
  EXPECT_NEAR(full.rounds, 48. / 132, 1e-9);
  c.mask = core::Mask::causal();
  EXPECT_EQ(cost_of(c).key_blocks, 4.5) << "1 to 8 blocks";
  c.mask = core::Mask{99, 0};
  EXPECT_NEAR(cost_of(c).key_blocks, 2, 0.2);
  c.mask = core::Mask::full();
  c.block_m = 64, c.block_n = 64;
  EXPECT_EQ(cost_of(c).tiles, 2 * 3 * 16);
  EXPECT_NEAR(cost_of(c).rounds, 96. / 264, 1e-9) << "two blocks on a multiprocessor";
}

TEST(Cost, FullAttentionPaysForWholeRoundsAndCausalForWhatItHas) {
  ForwardCase c = shape(1, 132, 128, 1024, 128);
  c.block_m = 128, c.block_n = 128;
  const double one_round = cost_of(c).compute_us;
  c.q_heads = c.kv_heads = 133;
  EXPECT_NEAR(cost_of(c).compute_us, 2 * one_round, 1e-6);
  c = shape(1, 50, 2048, 2048, 128);
  c.block_m = 128, c.block_n = 128;
  const double full = cost_of(c).compute_us;
  c.mask = core::Mask::causal();
  EXPECT_LT(cost_of(c).compute_us, 0.62 * full);
}

TEST(Cost, MoreKeysNeverCostLess) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256, 512}) {
    double last = 0;
    for (std::int64_t keys = 1; keys <= 70000; keys += 1 + keys / 7) {
      const double us = cost_of(shape(4, 16, 1024, keys, head_dim)).us();
      EXPECT_GE(us, last) << keys << " keys at head dim " << head_dim;
      last = us;
    }
  }
}

TEST(Cost, NoOtherCandidateIsCheaper) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const auto draw = [&random](std::uint64_t most) {
      return 1 + static_cast<std::int64_t>(random() % most);
    };
    ForwardCase c = shape(draw(40), draw(40), draw(3000), draw(3000), 8 * draw(32));
    if (random() % 2 == 0) c.mask = core::Mask::causal();
    if (random() % 4 == 0) c.mask = core::Mask{draw(500), 0};
    const core::ForwardProblem problem = shapes_of(c);
    const double chosen =
        forward::estimate(problem, *forward::choose_variant(problem), core::hopper_sm_count).compute_us;
    const auto candidates = forward::candidates_of(problem);
    EXPECT_EQ(std::count(candidates.begin(), candidates.end(), forward::choose_candidate(problem)), 1) << c;
    for (const forward::Candidate* other : candidates)
      EXPECT_GE(forward::estimate(problem, other->variant, core::hopper_sm_count).compute_us, chosen) << c;
  }
}

TEST(Cost, IsKnownInLessThanAMicrosecondForEachCandidate) {
  ForwardCase c = shape(4, 16, 8192, 8192, 128);
  c.mask = core::Mask::causal();
  const core::ForwardProblem problem = shapes_of(c);
  const ForwardVariant& variant = *forward::choose_variant(problem);
  double least = std::numeric_limits<double>::infinity(), sum = 0;
  for (int i = 0; i < 2000; ++i) {  // others use the machine: the quickest counts
    const auto start = std::chrono::steady_clock::now();
    for (int j = 0; j < 10; ++j) sum += forward::estimate(problem, variant, 132 - j % 2).compute_us;
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count() / 10);
  }
  EXPECT_GT(sum, 0);
#ifdef NDEBUG
  EXPECT_LT(least, 1);
#endif
}

/// A full mask over: batch, query heads, key/value heads, queries, keys, head dim.
ForwardCase grouped(const std::array<std::int64_t, 6>& sizes) {
  const auto& [batch, heads, kv_heads, q_len, k_len, head_dim] = sizes;
  ForwardCase c = shape(batch, heads, q_len, k_len, head_dim);
  c.kv_heads = kv_heads;
  return c;
}

// bench/results/h200/2026-11-26/few-ways*.txt: head dim 256, 112 and 96, tiles of which one consumer has all
// rows; and tiles of 64 rows for head dim 96.
TEST(Cost, FewQueriesOnLongKeysInOneKernelCostWithinATenthOfWhatTheyTook) {
  struct Row {
    std::array<std::int64_t, 6> sizes;
    core::Mask mask;
    double us;
  };
  for (const Row& row : {Row{{3, 40, 8, 25, 3066, 256}, core::Mask::full(), 50.9},
                         Row{{1, 28, 4, 53, 1409, 256}, core::Mask::causal(), 25.8},
                         Row{{8, 40, 8, 11, 2091, 112}, core::Mask::causal(), 59.1},
                         Row{{8, 40, 8, 20, 3117, 96}, core::Mask::causal(), 78.1},
                         Row{{8, 28, 4, 21, 22653, 96}, core::Mask::full(), 269.2}}) {
    ForwardCase c = grouped(row.sizes);
    c.mask = row.mask;
    EXPECT_NEAR(cost_of(c).us() / row.us, 1, 0.1) << c;
  }
}

TEST(Route, FewQueriesOnLongKeysGoThroughDecode) {
  for (const auto& sizes : std::initializer_list<std::array<std::int64_t, 6>>{{2, 64, 8, 1, 19980, 64},
                                                                              {10, 28, 4, 1, 13260, 256},
                                                                              {4, 16, 16, 8, 8192, 128},
                                                                              {4, 8, 1, 1, 1101, 96}}) {
    const ForwardCase c = grouped(sizes);
    EXPECT_EQ(api::route_of(shapes_of(c)).way, api::Way::step) << c;
  }
}

/// bench/results/h200/2026-11-29/forward-tiles.csv: keys that come from memory, and rows that are no whole
/// sectors of L2.
TEST(ChooseVariant, TakesTheTilesThatMeasuredFastest) {
  struct Choice {
    std::array<std::int64_t, 6> sizes;
    core::Mask mask;
    int block_m, block_n;
  };
  for (const Choice& choice :
       {Choice{{32, 20, 20, 112, 11887, 112}, core::Mask::full(), 128, 128},   // 992 us; 1110
        Choice{{8, 16, 16, 512, 8192, 128}, core::Mask::full(), 128, 128},     // 443; 489
        Choice{{32, 16, 4, 128, 16384, 128}, core::Mask::full(), 128, 128},    // 892; 968
        Choice{{2, 40, 8, 5000, 5000, 128}, core::Mask::full(), 128, 160},     // 1635; 1674
        Choice{{48, 8, 8, 4049, 786, 128}, core::Mask::full(), 128, 160},      // 1148; 1245
        Choice{{64, 28, 28, 642, 1062, 120}, core::Mask::causal(), 128, 128},  // 1123; 1489
        Choice{{64, 16, 16, 642, 1062, 168}, core::Mask::causal(), 128, 96},   // 948; 1231
        Choice{{64, 24, 24, 304, 540, 128}, core::Mask::full(), 64, 64}}) {    // 329; 343
    ForwardCase c = grouped(choice.sizes);
    c.mask = choice.mask;
    const ForwardVariant& variant = *forward::choose_variant(shapes_of(c));
    EXPECT_EQ(variant.block_m, choice.block_m) << c;
    EXPECT_EQ(variant.block_n, choice.block_n) << c;
  }
}

/// Several tiles of a step read the same keys, which took 1.2 to 2 times as long as other ways
/// (docs/performance/forward.md).
TEST(Route, RowsOfSeveralTilesOfAHeadGoThroughDecodeOnlyWhereThatIsFarAhead) {
  const auto way_of = [](const std::array<std::int64_t, 6>& sizes) {
    return api::route_of(shapes_of(grouped(sizes))).way;
  };
  EXPECT_EQ(way_of({6, 24, 24, 184, 26135, 112}), api::Way::one_kernel) << "806 us; in parts 1,313";
  EXPECT_EQ(way_of({3, 32, 4, 90, 16449, 128}), api::Way::parts);
  EXPECT_EQ(way_of({6, 24, 24, 196, 7581, 128}), api::Way::one_kernel);
  EXPECT_EQ(way_of({3, 32, 8, 52, 2811, 112}), api::Way::one_kernel);
  EXPECT_EQ(way_of({3, 40, 8, 25, 3066, 256}), api::Way::one_kernel) << "50.9 us; as a step 66.4";
  EXPECT_EQ(way_of({1, 8, 1, 20, 3435, 64}), api::Way::step) << "160 rows";
  EXPECT_EQ(way_of({6, 28, 4, 11, 22736, 128}), api::Way::step) << "77 rows, one tile";
  for (const auto& sizes : std::initializer_list<std::array<std::int64_t, 6>>{{3, 20, 20, 76, 3979, 128},
                                                                              {3, 24, 24, 80, 6544, 128}}) {
    ForwardCase c = grouped(sizes);
    c.mask = core::Mask::causal();
    EXPECT_EQ(api::route_of(shapes_of(c)).way, api::Way::one_kernel)
        << c << ": two tiles of 64 rows, or one of 128";
  }
}

TEST(Route, ManyQueriesStayInOneKernel) {
  for (const std::int64_t q_len : {600, 4096})
    EXPECT_EQ(api::route_of(shapes_of(shape(4, 16, q_len, 8192, 128))).way, api::Way::one_kernel) << q_len;
  EXPECT_EQ(api::route_of(shapes_of(shape(64, 16, 1, 64, 128))).way, api::Way::one_kernel) << "few keys";
}

TEST(Route, TilesThatLeaveMostOfTheChipEmptyShareTheirKeys) {
  ForwardCase c = shape(1, 8, 300, 65536, 128);  // more rows of a key/value head than a step takes
  c.kv_heads = 2;
  const api::Route route = api::route_of(shapes_of(c));
  EXPECT_EQ(route.way, api::Way::parts);
  EXPECT_GT(route.splits, 4);
  EXPECT_LT(route.parts_us, route.one_kernel_us / 3);
}

TEST(Route, SinksChunksSlopesAndTreesStayInOneKernel) {
  const float numbers[8] = {};
  const std::uint64_t words[2] = {};
  const core::ForwardProblem plain = shapes_of(shape(2, 8, 1, 20000, 64));
  ASSERT_EQ(api::route_of(plain).way, api::Way::step);
  const auto way_with = [&](const auto& change) {
    core::ForwardProblem problem = plain;
    change(problem);
    return api::route_of(problem).way;
  };
  using Problem = core::ForwardProblem;
  EXPECT_EQ(way_with([&](Problem& p) { p.sinks = numbers; }), api::Way::one_kernel);
  EXPECT_EQ(way_with([&](Problem& p) { p.mask.chunk = 100; }), api::Way::one_kernel);
  EXPECT_EQ(way_with([&](Problem& p) { p.slopes = {numbers, 0}; }), api::Way::one_kernel);
  EXPECT_EQ(way_with([&](Problem& p) { p.tree = words; }), api::Way::one_kernel);
}

TEST(Route, WhatIsAskedForByNameIsNotRouted) {
  ForwardCase c = shape(2, 8, 1, 20000, 64);
  c.turn = TANDEM_TURN_PINGPONG;
  EXPECT_EQ(api::route_of(shapes_of(c)).way, api::Way::one_kernel);
}

}  // namespace
}  // namespace tandem::test
