// In which order a call's tiles come.
#include "forward/schedule.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <vector>

#include "core/hopper.h"
#include "core/mask.h"
#include "forward/cost.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using forward::ForwardVariant;

/// A call as the kernels take it, its order, and what its tiles take.
struct Ordered {
  core::ForwardProblem problem;
  ForwardVariant variant;
  int grid;
  core::TileScheduler order;

  explicit Ordered(const ForwardCase& c)
      : problem(forward::for_kernels(shapes_of(c))),
        variant(*forward::choose_variant(problem)),
        grid(forward::grid_size(problem, variant, core::hopper_sm_count)),
        order(forward::make_schedule(problem, variant, forward::tiling_of(problem, variant), grid)) {}

  bool comes_by_heads() const { return order.heads_of_section() == 1; }
  double microseconds_of(int m_block) const {
    const std::int64_t queries = variant.block_m >> forward::tiling_of(problem, variant).packing.log2_heads,
                       first = m_block * queries;
    const auto blocks = core::block_ranges<core::Mask, std::int64_t>(
        problem.mask, first, std::min(first + queries, problem.q_len()), problem.q_len(), problem.k_len(),
        variant.block_n);
    const forward::TileCost cost = forward::tile_cost(variant);
    return cost.tile_us + cost.key_us * static_cast<double>((blocks.end - blocks.begin) * variant.block_n);
  }
  /// As the kernels find it (forward/work.h).
  int position(int round, int block) const {
    return variant.mask == forward::MaskKind::band ? core::TileScheduler::there_and_back(round, block, grid)
                                                   : order.position(round, block);
  }
  /// By length, if L2 held nothing, or everything.
  core::TileScheduler by_length(int cached) const {
    const forward::Tiling tiling = forward::tiling_of(problem, variant);
    return core::TileScheduler::longest_first(static_cast<int>(tiling.m_blocks),
                                              static_cast<int>(tiling.packs),
                                              static_cast<int>(problem.batch()), grid, cached);
  }
  /// What the longest share of a block takes, over the mean one.
  double unevenness(const core::TileScheduler& of) const {
    std::vector<double> shares(static_cast<std::size_t>(grid));
    for (int round = 0; round * grid < of.positions(); ++round)
      for (int block = 0; block < grid; ++block) {
        const int at = &of == &order ? position(round, block) : of.position(round, block);
        if (at >= of.positions()) continue;
        if (const core::Tile tile = of.tile(at); tile.exists())
          shares[static_cast<std::size_t>(block)] += microseconds_of(tile.m_block);
      }
    return *std::max_element(shares.begin(), shares.end()) * grid /
           std::accumulate(shares.begin(), shares.end(), 0.0);
  }
};

ForwardCase causal_case(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t head_dim) {
  ForwardCase c;
  c.batch = batch, c.q_heads = c.kv_heads = heads, c.q_len = c.k_len = tokens, c.head_dim = head_dim;
  c.mask = core::Mask::causal();
  return c;
}

TEST(Schedule, ShortCausalSequencesOfManyHeadsComeHeadByHead) {
  EXPECT_TRUE(Ordered(causal_case(54, 32, 583, 256)).comes_by_heads());
  EXPECT_TRUE(Ordered(causal_case(54, 32, 300, 128)).comes_by_heads());
  ForwardCase chunk = causal_case(15, 12, 1548, 128);
  chunk.k_len = 11637;
  EXPECT_TRUE(Ordered(chunk).comes_by_heads()) << "tiles are nearly of one length";
}

TEST(Schedule, EightBitOperandsOfUpTo128ColumnsComeByLength) {
  ForwardCase c = causal_case(54, 24, 300, 128);
  c.dtype = TANDEM_E4M3, c.eight_bit.output = TANDEM_BF16;
  EXPECT_FALSE(Ordered(c).comes_by_heads());
  c.head_dim = 256;
  EXPECT_TRUE(Ordered(c).comes_by_heads());
}

TEST(Schedule, FewRoundsComeHeadByHeadWhereByLengthTheyAreAsUneven) {
  EXPECT_TRUE(Ordered(causal_case(4, 32, 633, 128)).comes_by_heads());
  EXPECT_TRUE(Ordered(causal_case(11, 20, 561, 256)).comes_by_heads()) << "it saves more than it loses";
  ForwardCase grouped = causal_case(4, 8, 633, 128);
  grouped.q_heads = 32;
  EXPECT_FALSE(Ordered(grouped).comes_by_heads()) << "a group's heads share keys in any order";
}

TEST(Schedule, LongSequencesAndFewTilesComeByLength) {
  EXPECT_FALSE(Ordered(causal_case(1, 16, 16384, 128)).comes_by_heads());
  EXPECT_FALSE(Ordered(causal_case(20, 33, 3300, 256)).comes_by_heads())
      << "blocks would be even, but the tiles of a head far apart in time";
  EXPECT_FALSE(Ordered(causal_case(1, 32, 600, 128)).comes_by_heads()) << "one round";
  EXPECT_FALSE(Ordered(causal_case(6, 12, 900, 256)).comes_by_heads()) << "blocks would end unevenly";
}

TEST(Schedule, TilesOfADividedRoundGoThereAndBack) {
  const Ordered divided(causal_case(48, 24, 1408, 256));
  ASSERT_EQ(divided.grid % 11, 0);
  ASSERT_TRUE(divided.comes_by_heads());
  for (int block = 0; block < divided.grid; ++block) {
    const auto length = [&](int round) {
      return divided.order.tile(divided.order.position(round, block)).m_block;
    };
    EXPECT_EQ(length(0) + length(1), 10) << "block " << block;
  }
}

TEST(Schedule, BlocksOfWindowsAreExpectedToGoThereAndBackAsTheKernelsDo) {
  ForwardCase c = causal_case(62, 12, 600, 256);
  c.mask = core::Mask{65, 0};
  const Ordered call(c);
  ASSERT_EQ(call.variant.mask, forward::MaskKind::band);
  ASSERT_TRUE(call.comes_by_heads());
  for (const int round : {0, 1, 2, 3})
    for (const int block : {0, 7, call.grid - 1})
      EXPECT_EQ(call.order.position(round, block), call.position(round, block));
}

// Of shapes that nobody tuned for.
TEST(Schedule, DrawnCallsThatComeHeadByHeadAreEven) {
  const auto seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  const auto draw = [&](double low, double high) {
    return static_cast<std::int64_t>(
        std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random)));
  };
  int by_heads = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int64_t dims[] = {40, 64, 96, 128, 160, 256}, groups[] = {1, 1, 2, 4, 8};
    ForwardCase c = causal_case(draw(1, 100), 8, draw(100, 5000), dims[draw(1, 6.99) - 1]);
    c.q_heads = c.kv_heads * groups[draw(1, 5.99) - 1];
    if (i % 3 == 1) c.mask = core::Mask{draw(32, 2000), 0};
    if (i % 3 == 2) c.k_len = c.q_len * draw(1, 8);
    const Ordered call(c);
    if (!call.comes_by_heads()) continue;
    ++by_heads;
    double by_length = 1;
    for (int cached = 1; cached < 10000; cached *= 2)
      by_length = std::max(by_length, call.unevenness(call.by_length(cached)));
    const bool few_rounds = call.order.positions() < 12 * call.grid;
    const double as_good = c.head_dim > 128 ? 1.15 : 1.1;
    EXPECT_LE(call.unevenness(call.order), few_rounds ? std::max(1.2, as_good * by_length) : 1.2)
        << "seed " << seed << ", " << c.batch << " x " << c.q_heads << "/8 heads, " << c.q_len << " x "
        << c.k_len << ", d" << c.head_dim << ", left " << c.mask.left;
  }
  EXPECT_GE(by_heads, 20) << "seed " << seed;
}

}  // namespace
}  // namespace tandem::test
