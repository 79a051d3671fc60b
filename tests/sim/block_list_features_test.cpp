// Block lists beside sinks, chunks, slopes and trees on the software Hopper: every variant for them, against
// the oracle, and which of them the plan takes.
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "forward/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/forward_draws.h"
#include "tests/sim/near_oracle.h"
#include "tests/support/feature_case.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::FeatureArrays;
using test::FeatureCase;
using test::ForwardCase;

std::vector<ForwardVariant> listed_variants() { return sim::sparse_variants(forward::Lengths::varlen); }

struct ListedCase {
  const ForwardVariant& variant;
  ForwardCase c;
  FeatureCase features;

  /// The kernel sees NaN where nothing is listed, the oracle does not.
  void check(const sim::Machine& machine) const {
    const test::ForwardTensors unspoilt(c);
    test::ForwardTensors tensors(c);
    core::ForwardProblem problem = tensors.problem(), right = unspoilt.problem();
    const FeatureArrays arrays(features, problem);
    arrays.give(problem), arrays.give(right);
    test::spoil_unlisted(tensors);
    const core::ForwardProblem known = forward::for_kernels(problem);
    ASSERT_TRUE(known.varlen.given);
    const hw::sim::Report report = sim::simulate_forward(known, variant, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    test::expect_near_oracle(right, tensors);
    EXPECT_TRUE(tensors.o.guards_intact());
    EXPECT_TRUE(tensors.lse.guards_intact());
  }

  friend std::ostream& operator<<(std::ostream& out, const ListedCase& run) {
    return out << run.c << run.features;
  }
};

ListedCase draw_listed(const ForwardVariant& variant, std::uint64_t seed) {
  ForwardCase c = test::draw_case(variant, seed);
  test::Random random(seed + 1);
  const auto one_of = [&](std::uint64_t n) { return random() % n == 0; };
  if (one_of(4)) c.k_len = test::draw_length(random, forward::block_list_unit, 9);
  c.blocks = test::draw_block_list(random, forward::block_list_unit);
  c.blocks.seed = seed;
  FeatureCase features = test::draw_features(random);
  features.slopes = features.slopes && variant.knows_slopes();
  features.tree = features.tree && variant.knows_trees();
  if (variant.knows_chunks() && one_of(2))
    c.mask.chunk = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(3 * variant.block_n));
  if (!features.any() && c.mask.chunk == 0) features.sinks = true;
  // Mostly few enough for a tree.
  if (features.tree && !one_of(4)) c.q_len = 1 + static_cast<std::int64_t>(random() % 64);
  return {variant, c, features};
}

class ListedOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, ListedOnSim, testing::ValuesIn(listed_variants()),
                         test::test_name<ForwardVariant>);

TEST_P(ListedOnSim, EqualsTheOracleUnderEveryPolicyAndSeesNothingUnlisted) {
  test::for_each_run("sim_forward_test --gtest_filter=Variants/ListedOnSim", 3,
                     [](std::uint64_t seed) { return draw_listed(GetParam(), seed); });
}

TEST(ListedDraws, HaveEveryFeature) {
  test::Coverage coverage;
  test::for_each_draw(
      "EqualsTheOracleUnderEveryPolicyAndSeesNothingUnlisted", listed_variants(),
      [&](const ForwardVariant& v, std::uint64_t seed) {
        const ListedCase drawn = draw_listed(v, seed);
        const auto& [variant, c, features] = drawn;
        test::ForwardTensors tensors(c);
        const core::BlockList list = tensors.blocks.view();
        const bool several = c.q_heads > 1 && c.batch > 1 && c.q_len > 0 && c.k_len > 0;
        coverage.count("listed", "sinks", features.sinks && several);
        coverage.count("listed", "slopes", features.slopes && !features.slopes_by_entry && several);
        coverage.count("listed", "slopes of entries", features.slopes && features.slopes_by_entry && several);
        coverage.count("listed", "a tree", features.tree && c.q_len > 0 && c.q_len <= 64);
        coverage.count("listed", "too many queries for a tree", features.tree && c.q_len > 64);
        coverage.count("listed", "chunks", c.mask.chunk > 0 && c.mask.chunk < c.k_len);
        coverage.count("listed", "chunks, sinks and slopes",
                       c.mask.chunk > 0 && features.sinks && features.slopes);
        coverage.count("listed", "lists of entries and heads",
                       c.blocks.each_entry && c.blocks.each_head && several);
        coverage.count("listed", "lists that all share", !c.blocks.each_entry && !c.blocks.each_head);
        coverage.count("listed", "several blocks of queries", c.q_len > list.q_block);
        coverage.count("listed", "several key blocks in a listed one",
                       list.k_block > v.block_n && c.k_len > v.block_n);
        coverage.count("listed", "a listed block with a ragged end", c.k_len % list.k_block != 0);
        coverage.count("listed", "a list of none", c.q_len > 0 && c.k_len > 0 && list.counts[0] == 0);
        coverage.count("listed", "keys that nobody lists", test::spoil_unlisted(tensors) > 0);
      });
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

// Blocks that are full by the mask read their number only where there are slopes; the distance from an
// unlisted place would show.
TEST(ListedSlopes, CountFromTheListedBlockInFullBlocksToo) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    ForwardCase c{.q_len = 200, .k_len = 1500, .q_heads = 3, .kv_heads = 1, .head_dim = head_dim};
    c.blocks = {.q_block = 128, .k_block = 128, .each_head = true, .seed = 3};
    const FeatureCase features{.slopes = true};
    const test::ForwardTensors tensors(c);
    core::ForwardProblem problem = tensors.problem();
    const FeatureArrays arrays(features, problem);
    arrays.give(problem);
    const ForwardVariant* variant = forward::choose_variant(forward::for_kernels(problem));
    ASSERT_NE(variant, nullptr);
    ListedCase{*variant, c, features}.check(sim::Machine());
  }
}

// Results are anything then, but nothing is read or written that is not the call's: the simulator would say
// so.
TEST(ListedWild, NumbersNeverLeadOutOfBounds) {
  constexpr std::int32_t low = std::numeric_limits<std::int32_t>::min(), high = -(low + 1);
  const std::int32_t counts[] = {7, high, -3}, blocks[] = {0,    2,        high, low, -1, 6, 5,         //
                                                           high, high - 1, 6,    6,   3,  1, 16777216,  //
                                                           1,    2,        3,    4,   5,  6, 7};
  for (const std::int64_t head_dim : {64, 128, 192, 256})
    for (const std::int64_t q_len : {300, 50})
      for (const core::Mask mask : {core::Mask::full(), core::Mask::causal(), core::Mask{200, 40}}) {
        ForwardCase c{.batch = 2, .q_len = q_len, .k_len = 700, .q_heads = 2, .kv_heads = 1};
        c.head_dim = head_dim, c.mask = mask, c.blocks = {.q_block = 128, .k_block = 128};
        const FeatureCase features{.sinks = true, .tree = head_dim < 256, .slopes = head_dim != 128};
        const test::ForwardTensors tensors(c);
        core::ForwardProblem p = tensors.problem();
        const FeatureArrays arrays(features, p);
        arrays.give(p);
        p.blocks.counts = counts, p.blocks.blocks = blocks;
        p.blocks.slots = 7, p.blocks.batch_stride = p.blocks.head_stride = 0;
        const core::ForwardProblem known = forward::for_kernels(p);
        const ForwardVariant* variant = forward::choose_variant(known);
        ASSERT_NE(variant, nullptr) << c << features;
        EXPECT_EQ(variant->head_dim, head_dim);
        const hw::sim::Report report = sim::simulate_forward(known, *variant, {});
        EXPECT_TRUE(report.ok()) << c << features << "\n" << report.text();
        EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact());
      }
}

/// The variant for a list beside features; `chunk` 0: no chunks.
const ForwardVariant* variant_for(std::int64_t head_dim, const FeatureCase& features, std::int64_t chunk) {
  ForwardCase c{.q_len = 60, .k_len = 700, .q_heads = 8, .head_dim = head_dim};
  c.blocks = {.q_block = 128, .k_block = 128}, c.mask.chunk = chunk;
  const test::ForwardTensors tensors(c);
  core::ForwardProblem p = tensors.problem();
  const FeatureArrays arrays(features, p);
  arrays.give(p);
  const core::ForwardProblem known = forward::for_kernels(p);
  const ForwardVariant* variant = forward::choose_variant(known);
  EXPECT_EQ(forward::supported(known).ok(), variant != nullptr);
  if (variant != nullptr) {
    EXPECT_EQ(forward::tiling_of(known, *variant).packing.heads(), 1);
  }
  return variant;
}

TEST(ListedPlan, TakesTheNarrowestKernelsThatKnowTheFeatures) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    const std::int64_t any = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 192 ? 192 : 256;
    const std::int64_t with_slopes = any == 128 ? 192 : any;
    const ForwardVariant* plain = variant_for(head_dim, {}, 0);
    ASSERT_NE(plain, nullptr);
    EXPECT_EQ(plain->lengths, forward::Lengths::uniform) << "without features short calls are faster so";
    const ForwardVariant *sinks = variant_for(head_dim, {.sinks = true}, 0),
                         *slopes = variant_for(head_dim, {.slopes = true}, 0);
    ASSERT_TRUE(sinks != nullptr && slopes != nullptr) << head_dim;
    EXPECT_EQ(sinks->head_dim, any);
    EXPECT_EQ(slopes->head_dim, with_slopes) << head_dim;
    EXPECT_EQ(sinks->lengths, forward::Lengths::varlen);
    for (const bool tree : {true, false}) {
      const ForwardVariant* v = variant_for(head_dim, {.tree = tree}, tree ? 0 : 100);
      ASSERT_EQ(v == nullptr, head_dim > 192) << head_dim;
      if (v != nullptr) {
        EXPECT_EQ(v->head_dim, any);
      }
    }
  }
}

TEST(ListedPlan, RefusesChunksAndTreesOfTheWidestHeadsAndSaysSo) {
  ForwardCase c{.q_len = 60, .k_len = 700, .head_dim = 200};
  c.blocks = {.q_block = 128, .k_block = 128}, c.mask.chunk = 100;
  const test::ForwardTensors tensors(c);
  const core::Status status = forward::supported(forward::for_kernels(tensors.problem()));
  EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED);
  for (const char* words : {"head dim 200", "chunks", "a block list", "chunks and trees up to 192"})
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tandem
