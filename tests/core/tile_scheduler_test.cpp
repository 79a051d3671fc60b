// The order of tiles, and who has which.
#include "core/tile_scheduler.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace tandem::core {
namespace {

/// Tiles of each block, in its order.
std::vector<std::vector<Tile>> tiles_of_blocks(const TileScheduler& schedule, int grid) {
  std::vector<std::vector<Tile>> blocks(static_cast<std::size_t>(grid));
  for (int block = 0; block < grid; ++block) {
    for (int round = 0; round * grid < schedule.positions(); ++round) {
      const int position = schedule.position(round, block);
      if (position >= schedule.positions()) continue;
      const Tile tile = schedule.tile(position);
      if (tile.exists()) blocks[static_cast<std::size_t>(block)].push_back(tile);
    }
  }
  return blocks;
}

/// How often each tile is assigned.
std::map<std::tuple<int, int, int>, int> counts(const std::vector<std::vector<Tile>>& blocks) {
  std::map<std::tuple<int, int, int>, int> found;
  for (const auto& tiles : blocks)
    for (const Tile& tile : tiles) ++found[{tile.batch, tile.head, tile.m_block}];
  return found;
}

TEST(TileScheduler, DealsEveryTileOnce) {
  std::mt19937 random(5);
  const auto draw = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
  for (int i = 0; i < 300; ++i) {
    const int m_blocks = draw(40), heads = draw(20), batch = draw(6), grid = draw(140), cached = draw(40) - 1;
    for (const TileScheduler& schedule :
         {TileScheduler(m_blocks, heads, batch, grid),
          TileScheduler::head_by_head(m_blocks, heads, batch, grid),
          TileScheduler::longest_first(m_blocks, heads, batch, grid, cached)}) {
      const auto found = counts(tiles_of_blocks(schedule, grid));
      ASSERT_EQ(found.size(), static_cast<std::size_t>(m_blocks * heads * batch))
          << m_blocks << " blocks, " << heads << " heads, batch " << batch << ", grid " << grid << ", cached "
          << cached;
      for (const auto& [tile, times] : found) ASSERT_EQ(times, 1);
    }
  }
}

/// The longest block's share of causal work over the mean, a tile of m costing m + 1 and a constant.
double imbalance(int m_blocks, int heads, int grid, int cached_heads) {
  const auto blocks =
      tiles_of_blocks(TileScheduler::longest_first(m_blocks, heads, 1, grid, cached_heads), grid);
  std::vector<double> loads;
  double sum = 0;
  for (const auto& tiles : blocks) {
    double load = 0;
    for (const Tile& tile : tiles) load += tile.m_block + 2.5;
    loads.push_back(load);
    sum += load;
  }
  return *std::max_element(loads.begin(), loads.end()) / sum * grid;
}

/// Heads whose first tiles come one after another: a section of the order.
int heads_at_a_time(const TileScheduler& schedule) {
  int heads = 0;
  while (heads < schedule.positions() && schedule.tile(heads).m_block == schedule.tile(0).m_block) ++heads;
  return heads;
}

TEST(TileScheduler, EvensOutCausalTiles) {
  constexpr int grid = 132;
  for (const auto& [m_blocks, heads, cached] :
       std::vector<std::tuple<int, int, int>>{{16, 128, 32}, {32, 64, 16}, {64, 32, 8}, {128, 16, 4}}) {
    EXPECT_LT(imbalance(m_blocks, heads, grid, cached), 1.01) << m_blocks;
    EXPECT_LT(imbalance(m_blocks, heads, grid, 1'000'000), 1.01) << m_blocks;
  }
}

TEST(TileScheduler, AFewHeadsLeftOverDoNotMakeASectionOfTheirOwn) {
  // Sections of 11 heads, and 3, 7, 6 of them left over: less than two tiles for each block.
  for (const int heads : {80, 40, 160}) EXPECT_LT(imbalance(24, heads, 132, 1'000'000), 1.03) << heads;
}

TEST(TileScheduler, EvensOutWhereARoundIsASection) {
  // 4 divides 132: 33 heads a section. Whole pairs of sections; an odd one; and heads left over.
  for (const int heads : {264, 256, 231, 99, 40})
    EXPECT_LT(imbalance(4, heads, 132, 1'000'000), heads < 132 ? 1.25 : 1.04) << heads;
  for (const int heads : {12, 16, 20}) EXPECT_LT(imbalance(33, heads, 132, 1'000'000), 1.12) << heads;
}

TEST(TileScheduler, LongAndShortTilesRunTogetherWhereARoundIsASection) {
  constexpr int grid = 132, m_blocks = 4;
  const TileScheduler schedule = TileScheduler::longest_first(m_blocks, 264, 1, grid, 1'000'000);
  for (int round = 0; round < 6; ++round) {  // the last two are one section
    std::map<int, int> lengths;
    for (int block = 0; block < grid; ++block)
      ++lengths[schedule.tile(schedule.position(round, block)).m_block];
    for (int m = 0; m < m_blocks; ++m) EXPECT_EQ(lengths[m], grid / m_blocks) << "round " << round;
  }
}

TEST(TileScheduler, HeadsAtWorkStayInL2) {
  constexpr int grid = 132, m_blocks = 64, heads = 32, cached = 8;
  const TileScheduler schedule = TileScheduler::longest_first(m_blocks, heads, 1, grid, cached);
  for (int round = 0; round * grid < schedule.positions(); ++round) {
    std::map<int, int> found;
    for (int block = 0; block < grid; ++block) {
      const int position = schedule.position(round, block);
      if (position >= schedule.positions()) continue;
      const Tile tile = schedule.tile(position);
      if (tile.exists()) ++found[tile.head];
    }
    EXPECT_LE(found.size(), static_cast<std::size_t>(cached)) << "round " << round;
  }
}

// Of shapes that nobody tuned for: blocks end together, and the heads that run together fit L2 wherever they
// can.
TEST(TileScheduler, DrawnShapesAreEvenAndTheirSectionsFitL2) {
  constexpr int grid = 132, draws = 400;
  std::mt19937 random(11);
  const auto draw = [&](double low, double high) {
    return std::exp2(std::uniform_real_distribution<double>(low, high)(random));
  };
  double sum = 0, worst = 1;
  int too_large = 0;
  for (int i = 0; i < draws; ++i) {
    const int m_blocks = static_cast<int>(draw(3, 8.5)), heads = static_cast<int>(draw(4, 9));
    const int cached = std::max(1, static_cast<int>(512.0 / m_blocks));  // at head dim 128, ungrouped
    if (std::int64_t{m_blocks} * heads < 4 * grid) continue;
    const double even = 1 / imbalance(m_blocks, heads, grid, cached);
    EXPECT_GT(even, 0.88) << m_blocks << " tiles of each of " << heads << " heads";
    worst = std::min(worst, even);
    sum += 1 - even;
    const auto schedule = TileScheduler::longest_first(m_blocks, heads, 1, grid, cached);
    too_large += heads_at_a_time(schedule) > 3 * cached ? 1 : 0;
  }
  RecordProperty("least_even", std::to_string(worst));
  EXPECT_LT(sum / draws, 0.025);
  EXPECT_LT(too_large, draws / 20);
}

TEST(TileScheduler, EveryBlockGetsEachTileOfAHeadAsOften) {
  constexpr int heads = 2000;
  for (const int grid : {132, 114, 16, 1}) {
    for (const int m_blocks : {1, 2, 3, 4, 6, 7, 11, 12, 19}) {
      for (const auto& tiles : tiles_of_blocks(TileScheduler(m_blocks, heads, 1, grid), grid)) {
        const auto last = std::count_if(tiles.begin(), tiles.end(),
                                        [&](const Tile& tile) { return tile.m_block == m_blocks - 1; });
        EXPECT_NEAR(static_cast<double>(last), static_cast<double>(heads) / grid, 2)
            << m_blocks << " tiles a head, grid " << grid;
      }
    }
  }
}

TEST(TileScheduler, TilesOfEqualLengthComeHeadAfterHead) {
  const TileScheduler schedule(3, 2, 2, 132);
  for (int position = 0; position < 12; ++position) {
    const Tile tile = schedule.tile(position);
    EXPECT_EQ((tile.batch * 2 + tile.head) * 3 + tile.m_block, position);
  }
}

TEST(TileScheduler, HeadByHeadTheLongestTileComesFirst) {
  const TileScheduler schedule = TileScheduler::head_by_head(3, 2, 2, 132);
  ASSERT_EQ(schedule.positions(), 12);
  for (int position = 0; position < 12; ++position) {
    const Tile tile = schedule.tile(position);
    EXPECT_EQ((tile.batch * 2 + tile.head) * 3 + 2 - tile.m_block, position);
  }
  EXPECT_EQ(schedule.heads_of_section(), 1);
}

TEST(TileScheduler, TheLastSectionOfAStaggeredOrderHasAsManyTilesAsAskedOrAll) {
  std::mt19937 random(7);
  const auto draw = [&random](int most) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    const int m_blocks = draw(40), heads = draw(12), batch = draw(6), all = heads * batch,
              section = draw(all), last_tiles = draw(400);
    SCOPED_TRACE(testing::Message() << "draw " << i << ": " << m_blocks << " tiles of " << heads << " x "
                                    << batch << ", " << section << " together, " << last_tiles
                                    << " at the end");
    const TileScheduler order = TileScheduler::staggered(m_blocks, heads, batch, section, last_tiles);
    ASSERT_EQ(order.positions(), m_blocks * all);
    std::vector<int> next(static_cast<std::size_t>(all)), first(next.size());
    for (int position = 0; position < order.positions(); ++position) {
      const Tile tile = order.tile(position);
      const auto head = static_cast<std::size_t>(tile.batch * heads + tile.head);
      if (next[head] == 0) first[head] = position;
      EXPECT_EQ(tile.m_block, next[head]++) << "those of a head come in order";
    }
    // Heads of the last section begin one after another at its start.
    int of_last = 1;
    while (of_last < all &&
           first[next.size() - 1] - first[next.size() - 1 - static_cast<std::size_t>(of_last)] == of_last)
      ++of_last;
    if (m_blocks > 1) EXPECT_TRUE(of_last == all || of_last * m_blocks >= last_tiles);
    EXPECT_GE(order.heads_of_section(), std::min(section, all));
  }
}

}  // namespace
}  // namespace tandem::core
