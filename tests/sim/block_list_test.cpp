// Block lists on the software Hopper: every variant for them, against the oracle, and what the plan makes of
// them.
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>

#include "forward/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/forward_draws.h"
#include "tests/sim/simulated_forward.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::ForwardCase;

/// A few tiles of queries on a few listed blocks.
ForwardCase draw_listed(const ForwardVariant& variant, std::uint64_t seed) {
  ForwardCase c = test::draw_case(variant, seed);
  test::Random random(seed + 1);
  if (random() % 4 == 0) c.k_len = test::draw_length(random, forward::block_list_unit, 9);
  c.blocks = test::draw_block_list(random, forward::block_list_unit);
  c.blocks.seed = seed;
  return c;
}

class SparseOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, SparseOnSim, testing::ValuesIn(sim::sparse_variants()),
                         test::test_name<ForwardVariant>);

TEST_P(SparseOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_forward_test --gtest_filter=Variants/SparseOnSim", 3, [](std::uint64_t seed) {
    return test::SimulatedForward(GetParam(), draw_listed(GetParam(), seed));
  });
}

/// The plan's variant and the list that it is given, of numbers that no block has.
class WildLists : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(HeadDims, WildLists, testing::Values(64, 128, 256));

// Results are anything then, but nothing is read or written that is not the call's: the simulator would say
// so.
TEST_P(WildLists, NeverLeadOutOfBounds) {
  ForwardCase c{.batch = 1, .q_len = 300, .k_len = 700, .q_heads = 2, .kv_heads = 1, .head_dim = GetParam()};
  for (const core::Mask mask : {core::Mask::full(), core::Mask::causal(), core::Mask{200, 40}}) {
    c.mask = mask;
    c.blocks = {.q_block = 128, .k_block = 128};
    const test::ForwardTensors tensors(c);
    core::ForwardProblem p = tensors.problem();
    constexpr std::int32_t low = std::numeric_limits<std::int32_t>::min(), high = -(low + 1);
    const std::int32_t counts[] = {7, high, -3}, blocks[] = {0,    2,        high, low, -1, 6, 5,         //
                                                             high, high - 1, 6,    6,   3,  1, 16777216,  //
                                                             1,    2,        3,    4,   5,  6, 7};
    p.blocks.counts = counts, p.blocks.blocks = blocks;
    p.blocks.slots = 7, p.blocks.batch_stride = p.blocks.head_stride = 0;
    const ForwardVariant* variant = forward::choose_variant(p);
    ASSERT_NE(variant, nullptr);
    const hw::sim::Report report = sim::simulate_forward(p, *variant, {});
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact());
  }
}

// Not even one that is positive times the kernel's blocks of a listed one, as 32 bits hold it.
TEST_P(WildLists, OfANegativeCountAreEmpty) {
  ForwardCase c{.batch = 1, .q_len = 100, .k_len = 700, .q_heads = 1, .kv_heads = 1, .head_dim = GetParam()};
  c.blocks = {.q_block = 128, .k_block = 384};
  const test::ForwardTensors tensors(c);
  core::ForwardProblem p = tensors.problem();
  const std::int32_t count = -1431655765, blocks[] = {0, 1};
  p.blocks.counts = &count, p.blocks.blocks = blocks, p.blocks.slots = 2;
  const hw::sim::Report report = sim::simulate_forward(p, *forward::choose_variant(p), {});
  ASSERT_TRUE(report.ok()) << report.text();
  for (std::int64_t i = 0; i < c.q_len; ++i)
    for (std::int64_t e = 0; e < c.head_dim; ++e) ASSERT_EQ(tensors.o.at(0, i, 0, e), 0) << i << " " << e;
}

TEST(BlockListDraws, HaveEveryFeature) {
  test::Coverage coverage;
  test::for_each_draw(
      "EqualsTheOracleUnderEveryPolicy", sim::sparse_variants(),
      [&](const ForwardVariant& v, std::uint64_t seed) {
        const ForwardCase c = draw_listed(v, seed);
        const test::ForwardTensors tensors(c);
        const core::BlockList list = tensors.blocks.view();
        test::count_mask(coverage, "sparse", {c.mask, c.q_len, c.k_len, true});
        coverage.count("sparse", "several blocks of queries", c.q_len > list.q_block);
        coverage.count("sparse", "several tiles in a block of queries",
                       c.q_len > v.block_m && list.q_block > v.block_m);
        coverage.count("sparse", "several key blocks in a listed one",
                       list.k_block > v.block_n && c.k_len > v.block_n);
        coverage.count("sparse", "a listed block with a ragged end", c.k_len % list.k_block != 0);
        coverage.count("sparse", "lists of entries", c.blocks.each_entry && c.batch > 1);
        coverage.count("sparse", "lists of heads", c.blocks.each_head && c.q_heads > 1);
        coverage.count("sparse", "lists that all share", !c.blocks.each_head && !c.blocks.each_entry);
        const std::int64_t blocks = (c.k_len + list.k_block - 1) / list.k_block;
        for (std::int64_t row = 0; c.q_len > 0 && row < (c.q_len + list.q_block - 1) / list.q_block; ++row) {
          const std::int64_t count = list.counts[row];
          coverage.count("sparse", "a list of none", count == 0 && blocks > 0);
          coverage.count("sparse", "a list of all", count == blocks && blocks > 1);
          coverage.count("sparse", "a list of some", count > 0 && count < blocks);
          coverage.count(
              "sparse", "a gap in the middle",
              count > 1 &&
                  list.blocks[row * list.slots + count - 1] - list.blocks[row * list.slots] >= count);
        }
      });
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

TEST(BlockListPlan, RefusesWhatNoKernelServesAndNamesIt) {
  ForwardCase c{.q_len = 256, .k_len = 512, .blocks = {.q_block = 128, .k_block = 256}};
  const test::ForwardTensors tensors(c);
  const auto refusal = [&](auto spoil) {
    core::ForwardProblem p = tensors.problem();
    spoil(p);
    const core::Status status = forward::supported(p);
    return status.code() == TANDEM_UNSUPPORTED ? std::string(status.message()) : "served";
  };
  EXPECT_EQ(refusal([](core::ForwardProblem&) {}), "served");
  EXPECT_EQ(refusal([](core::ForwardProblem& p) { p.blocks.q_block = 64; }),
            "block_list.q_block is 64; the Hopper backend takes multiples of 128");
  EXPECT_EQ(refusal([](core::ForwardProblem& p) { p.blocks.k_block = 192; }),
            "block_list.k_block is 192; the Hopper backend takes multiples of 128");
}

}  // namespace
}  // namespace tandem
