// Block lists of variable lengths on the software Hopper: every variant for them against the oracle of each
// sequence, with NaN in all that may not be read.
#include <algorithm>
#include <gtest/gtest.h>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "forward/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/varlen_draws.h"
#include "tests/sim/varlen_problem.h"
#include "tests/support/varlen_batch.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::KeyLayout;
using test::VarlenCase;
using test::VarlenProblem;
using test::VarlenTensors;

std::vector<ForwardVariant> listed_variants() { return sim::sparse_variants(forward::Lengths::varlen); }

VarlenProblem draw_listed(const ForwardVariant& variant, std::uint64_t seed) {
  VarlenCase c = test::draw_varlen_case(variant, seed);
  test::Random random(seed + 1);
  // Keys of several blocks of the list, of which some end within one.
  for (std::int64_t& length : c.k_lens)
    if (random() % 2 == 0) length += forward::block_list_unit * static_cast<std::int64_t>(random() % 4);
  c.blocks = test::draw_block_list(random, forward::block_list_unit);
  return {variant, c};
}

class ListedVarlenOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, ListedVarlenOnSim, testing::ValuesIn(listed_variants()),
                         test::test_name<ForwardVariant>);

TEST_P(ListedVarlenOnSim, EachSequenceEqualsItsOracleAndSeesNothingUnlisted) {
  test::for_each_run("sim_varlen_test --gtest_filter=Variants/ListedVarlenOnSim", 3,
                     [](std::uint64_t seed) { return draw_listed(GetParam(), seed); });
}

TEST(ListedVarlenDraws, HaveEveryFeature) {
  test::Coverage coverage;
  test::for_each_draw(
      "EachSequenceEqualsItsOracleAndSeesNothingUnlisted", listed_variants(),
      [&](const ForwardVariant& v, std::uint64_t seed) {
        const VarlenCase c = draw_listed(v, seed).c;
        VarlenTensors tensors(c);
        const core::BlockList list = tensors.blocks.view();
        const auto count = [&](const char* feature, bool has) { coverage.count("listed", feature, has); };
        const auto longest = [](const std::vector<std::int64_t>& lengths) {
          return *std::ranges::max_element(lengths);
        };
        const bool several = c.q_lens.size() > 1;
        count("packed queries", c.q_packed && several);
        count("queries in entries", !c.q_packed && several);
        count("packed keys", c.keys == KeyLayout::packed && several);
        count("keys in entries", c.keys == KeyLayout::entries && several);
        count("keys in pages", c.keys == KeyLayout::paged && several);
        count("entries in another order", c.batch_index && several);
        count("padding", !c.padding.empty());
        count("appended keys", c.appends());
        count("rotary embedding", c.rotary_dim > 0);
        count("sinks", c.sinks);
        count("slopes of sequences", c.slopes && c.slopes_by_sequence && several);
        count("a tree", c.tree);
        count("chunks", c.mask.chunk > 0);
        count("none of these", !c.sinks && !c.slopes && !c.tree && c.mask.chunk == 0);
        count("a list of each sequence", c.blocks.each_entry && several);
        count("a list of each sequence and head", c.blocks.each_entry && c.blocks.each_head && several);
        count("a list that all share", !c.blocks.each_entry && !c.blocks.each_head && several);
        count("several blocks of queries", longest(c.q_lens) > list.q_block);
        count("several key blocks in a listed one",
              list.k_block > v.block_n && longest(c.k_lens) > v.block_n);
        count("a sequence without keys", several && *std::ranges::min_element(c.k_lens) == 0);
        count("keys that nobody lists", test::spoil_unlisted(tensors) > 0);
      });
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

/// Runs it by the kernel that the plan takes.
VarlenProblem chosen_for(const VarlenCase& c) {
  const ForwardVariant* variant = forward::choose_variant(VarlenTensors(c).problem());
  EXPECT_NE(variant, nullptr) << c;
  return {variant != nullptr ? *variant : listed_variants().front(), c};
}

/// Sequences of both sides of a block, of few and of no keys.
VarlenCase ragged(std::int64_t head_dim) {
  VarlenCase c;
  c.q_lens = {130, 1, 300, 64}, c.k_lens = {515, 70, 0, 129};
  c.q_heads = 2, c.head_dim = head_dim;
  c.blocks = {.q_block = 128, .k_block = 128, .each_entry = true, .each_head = true, .seed = 7};
  return c;
}

// Without sinks and the like too: a plain list of variable lengths has no other kernels.
TEST(ListedVarlenPlan, TakesTheSparseKernelsOfVariableLengths) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    const ForwardVariant& v = chosen_for(ragged(head_dim)).variant;
    EXPECT_TRUE(v.block_sparse && v.lengths == forward::Lengths::varlen) << head_dim;
    EXPECT_EQ(v.head_dim, head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 192 ? 192 : 256);
  }
}

TEST(ListedVarlenPlan, RefusesBlocksThatTilesDoNotDivide) {
  VarlenCase c = ragged(64);
  c.blocks.k_block = 64;
  const core::Status status = forward::supported(VarlenTensors(c).problem());
  EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED);
  EXPECT_NE(std::string(status.message()).find("block_list.k_block is 64"), std::string::npos)
      << status.message();
}

/// By head dim.
class ListedVarlenTails : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, ListedVarlenTails, testing::Values(64, 128, 192, 256),
                         [](const auto& head_dim) {
                           return std::string("d").append(std::to_string(head_dim.param));
                         });

// Behind a sequence's last key stand those of the next, and behind the last sequence's NaN.
TEST_P(ListedVarlenTails, ReachNoOutput) {
  for (const core::Mask mask : {core::Mask::full(), core::Mask::causal()}) {
    VarlenCase c = ragged(GetParam());
    c.mask = mask;
    chosen_for(c).check(sim::Machine());
  }
}

// A list that all share names blocks which shorter sequences don't have.
TEST_P(ListedVarlenTails, BlocksBehindTheLastKeyAreNone) {
  VarlenCase c = ragged(GetParam());
  c.blocks.each_entry = c.blocks.each_head = false;
  chosen_for(c).check(sim::Machine());
}

TEST(ListedVarlenBits, OfASequenceAreTheSameAloneWithASplitSize) {
  for (const std::int64_t head_dim : {64, 128}) {
    VarlenCase c = ragged(head_dim);
    c.split_size = 64, c.mask = core::Mask::causal();
    const VarlenTensors all(c);
    const ForwardVariant& variant = chosen_for(c).variant;
    ASSERT_TRUE(sim::simulate_forward(all.problem(), variant, {}).ok());
    for (const std::size_t i : {std::size_t{0}, std::size_t{3}}) {
      const VarlenTensors alone = test::sequences_of(all, {i});
      EXPECT_EQ(*forward::choose_variant(alone.problem()), variant);
      ASSERT_TRUE(sim::simulate_forward(alone.problem(), variant, {}).ok());
      EXPECT_TRUE(test::bits_of(alone, 0) == test::bits_of(all, i)) << i;
    }
  }
}

// Results are anything then, but nothing is read or written that is not the call's: the simulator would say
// so.
TEST(ListedVarlenWild, NumbersNeverLeadOutOfBounds) {
  constexpr std::int32_t low = std::numeric_limits<std::int32_t>::min(), high = -(low + 1);
  // Of sequence i from row i on. In the first row a block that is behind all keys comes first.
  const std::int32_t counts[] = {7, high, -3, 7, high, 7},
                     blocks[] = {high, 0,        0,    0,   0,  0, 1,         //
                                 0,    2,        high, low, -1, 6, 5,         //
                                 1,    2,        3,    4,   5,  6, 7,         //
                                 high, high - 1, 6,    6,   3,  1, 16777216,  //
                                 4,    2,        3,    4,   0,  1, 1,         //
                                 high, 1,        1,    0,   0,  1, low};
  for (const std::int64_t head_dim : {64, 128, 192, 256})
    for (const KeyLayout keys : {KeyLayout::packed, KeyLayout::entries, KeyLayout::paged})
      for (const core::Mask mask : {core::Mask::full(), core::Mask::causal(), core::Mask{200, 40}}) {
        VarlenCase c = ragged(head_dim);
        c.mask = mask, c.keys = keys;
        const ForwardVariant& variant = chosen_for(c).variant;
        VarlenTensors tensors(c);
        if (keys == KeyLayout::packed) tensors.cu_seqlens_k = {-7, 300, 200, 1000, 500};
        core::ForwardProblem p = tensors.problem();
        p.blocks.counts = counts, p.blocks.blocks = blocks;
        p.blocks.slots = 7, p.blocks.batch_stride = 1, p.blocks.head_stride = 0;
        const hw::sim::Report report = sim::simulate_forward(p, variant, {});
        EXPECT_TRUE(report.ok()) << c << "\n" << report.text();
        EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact());
      }
}

}  // namespace
}  // namespace tandem
