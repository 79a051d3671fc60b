// The order in which tiles of keys are taken, and the ring of sums of dQ: no tile waits for one that is taken
// behind it, however many heads there are.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "backward/plan.h"
#include "tests/support/backward_case.h"

namespace tandem::test {
namespace {

using backward::BackwardArguments;

/// From a few heads of many tiles to many of one: the ring holds fewer than there are.
BackwardCase draw_case(std::uint64_t seed) {
  Random random(seed);
  const auto draw = [&random](std::uint64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
  BackwardCase c;
  ForwardCase& f = c.forward;
  f.dtype = TANDEM_BF16;
  f.head_dim = 8 * draw(16);
  f.batch = draw(4), f.kv_heads = draw(64), f.q_heads = f.kv_heads * draw(3);
  f.k_len = draw(3) == 1 ? draw(128) : draw(20000);
  f.q_len = draw(3) == 1 ? f.k_len : draw(300);
  if (draw(3) != 1) f.mask = random_mask(random, f.q_len, f.k_len);
  return c;
}

/// What the kernels of the products are told, that of tiles of keys last.
std::vector<BackwardArguments> all_arguments_of(const core::BackwardProblem& p) {
  std::vector<BackwardArguments> arguments;
  const backward::Call call(p, backward::choose(p), 132, nullptr);
  const core::Status done = call.for_each_step<core::Status>([&arguments](const auto& step) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(step.record.arguments)>, BackwardArguments>)
      arguments.insert(step.record.variant.is_of_keys() ? arguments.end() : arguments.begin(),
                       step.record.arguments);
    return core::Status{};
  });
  EXPECT_TRUE(done.ok());
  return arguments;
}

/// What the kernel of tiles of keys is told; nothing where no query sees a key.
std::optional<BackwardArguments> arguments_of(const core::BackwardProblem& p) {
  const std::vector<BackwardArguments> all = all_arguments_of(p);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

/// Positions of a head's first, second and last tile.
struct HeadRange {
  int first, second, last, tiles;

  /// Another tile at a position.
  void add(int position) {
    if (tiles == 0) first = position;
    if (tiles == 1) second = position;
    last = position, ++tiles;
  }
};

/// Of all heads of all batch entries, whose tiles have to come in order.
std::map<int, HeadRange> heads_of(const backward::KeyOrder& order, int heads) {
  std::map<int, HeadRange> found;
  for (int i = 0; i < order.positions(); ++i) {
    const core::Tile tile = order.tile(i);
    if (!tile.exists()) continue;
    HeadRange& head = found[tile.batch * heads + tile.head];
    EXPECT_EQ(tile.m_block, head.tiles) << "tiles of earlier keys come first";
    head.add(i);
  }
  return found;
}

/// Whether a head begins when another has had tiles, not only its first one, and has some to come: heads of a
/// section begin one after another.
bool begins_amid_another(const std::map<int, HeadRange>& heads) {
  const HeadRange& one = heads.begin()->second;
  return std::any_of(heads.begin(), heads.end(), [&](const auto& entry) {
    return entry.second.first > one.second && entry.second.first < one.last;
  });
}

TEST(BackwardRing, WhatATileWaitsForComesBeforeIt) {
  int with_a_small_ring = 0;
  for (std::uint64_t seed = 1; seed <= 120 && !testing::Test::HasFailure(); ++seed) {
    const BackwardCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << c);
    const auto args = arguments_of(shapes_of(c));
    if (!args) continue;
    const backward::KeyOrder& order = args->order;
    const int kv_heads = args->extent.q_heads / args->group.value(), of_ring = args->ring.heads.value();
    const std::map<int, HeadRange> heads = heads_of(order, kv_heads);
    // A place is a later head's when all tiles of the earlier one have been taken.
    for (const auto& [number, head] : heads) {
      if (number >= of_ring) {
        EXPECT_LT(heads.at(number - of_ring).last, head.first);
      }
    }
    with_a_small_ring += of_ring < static_cast<int>(heads.size()) ? 1 : 0;
  }
  EXPECT_GT(with_a_small_ring, 10);
}

TEST(BackwardOrder, SectionsOverlapWhereTheNextTileWaitsForLong) {
  struct Choice {
    std::int64_t head_dim, kv_heads, group, tokens;
    core::Mask mask;
    bool overlaps;
  };
  for (const Choice& choice : {Choice{64, 32, 1, 4096, core::Mask::causal(), true},
                               {56, 4, 1, 32768, core::Mask::causal(), true},
                               {64, 32, 1, 4096, core::Mask::full(), false},
                               {64, 32, 1, 4096, core::Mask{1000, 0}, false},
                               {64, 32, 2, 4096, core::Mask::causal(), false},
                               {96, 32, 1, 4096, core::Mask::causal(), true},
                               {128, 32, 1, 4096, core::Mask::causal(), true},
                               {64, 200, 1, 512, core::Mask::causal(), true},
                               {64, 600, 1, 384, core::Mask::causal(), false},
                               {128, 24, 1, 3000, core::Mask::causal(), false},
                               {128, 60, 1, 1024, core::Mask::causal(), false},  // 480 tiles of 132 at a time
                               {128, 90, 1, 1024, core::Mask::causal(), true},
                               {192, 32, 1, 4096, core::Mask::causal(), false},
                               {64, 8, 1, 4096, core::Mask::causal(), false}}) {
    BackwardCase c;
    ForwardCase& f = c.forward;
    f.dtype = TANDEM_BF16, f.head_dim = choice.head_dim, f.mask = choice.mask;
    f.batch = 1, f.kv_heads = choice.kv_heads, f.q_heads = choice.kv_heads * choice.group;
    f.q_len = f.k_len = choice.tokens;
    SCOPED_TRACE(c);
    const auto args = arguments_of(shapes_of(c));
    ASSERT_TRUE(args);
    EXPECT_EQ(begins_amid_another(heads_of(args->order, static_cast<int>(f.kv_heads))), choice.overlaps);
  }
}

/// Of how many heads a tile comes before the second one of the first head.
int heads_ahead_of_a_second_tile(const BackwardCase& c) {
  const auto args = arguments_of(shapes_of(c));
  if (!args) return 0;
  const std::map<int, HeadRange> heads = heads_of(args->order, static_cast<int>(c.forward.kv_heads));
  const int second = heads.begin()->second.second;
  return static_cast<int>(std::count_if(heads.begin(), heads.end(),
                                        [&](const auto& entry) { return entry.second.first < second; }));
}

TEST(BackwardOrder, TilesThatWouldWaitForOneAnotherAreOfManyHeads) {
  BackwardCase c;
  ForwardCase& f = c.forward;
  f.dtype = TANDEM_BF16, f.head_dim = 64, f.batch = 4, f.kv_heads = f.q_heads = 24;
  f.q_len = 51, f.k_len = 5878;
  EXPECT_EQ(heads_ahead_of_a_second_tile(c), 96) << "one visit a tile: the chip's worth of heads, or all";
  f.q_len = 5878;
  EXPECT_EQ(heads_ahead_of_a_second_tile(c), 3) << "46 visits a tile";
}

TEST(BackwardOrder, TilesOfWideHeadsFollowOneAnotherWhereHeadsAreEnough) {
  BackwardCase c;
  ForwardCase& f = c.forward;
  f.dtype = TANDEM_BF16, f.head_dim = 192, f.mask = core::Mask::causal();
  f.q_len = f.k_len = 600;
  for (const std::int64_t heads : {48, 96}) {
    f.batch = 2, f.kv_heads = f.q_heads = heads / 2;
    const std::vector<BackwardArguments> all = all_arguments_of(shapes_of(c));
    ASSERT_EQ(all.size(), 2u);
    const HeadRange keys = heads_of(all.back().order, static_cast<int>(f.kv_heads)).begin()->second;
    EXPECT_EQ(keys.second - keys.first == 1, heads == 96) << heads;
    const core::TileScheduler& of_queries = all.front().schedule;
    EXPECT_EQ(of_queries.tile(0).m_block, 4) << "the longest first";
    EXPECT_EQ(of_queries.tile(1).m_block, heads == 96 ? 3 : 4) << heads;
  }
}

/// L2 has a block for the next tile of a head if that comes to it soon.
TEST(BackwardOrder, TilesThatTakeManyHeadsInTurnFollowOneAnotherButForTheLastHeads) {
  struct Choice {
    std::int64_t batch, q_heads, kv_heads, tokens, head_dim;
    int in_turn;  ///< heads whose tiles take turns, of the last section
    int first;    ///< of the first one
    const char* why;
  };
  for (const Choice& x : {Choice{8, 32, 8, 4096, 128, 3, 1, "66 tiles or more"},
                          {8, 128, 8, 4096, 64, 5, 1, "132 tiles or more"},
                          {8, 32, 8, 4096, 64, 8, 8, "head dim 64: two rounds"},
                          {4, 24, 8, 1000, 96, 32, 32, "256 tiles are two rounds"},
                          {8, 16, 8, 4096, 128, 20, 22, "two heads in turn: a third of 2048 tiles"},
                          {8, 16, 8, 4096, 64, 20, 22, "and at head dim 64"},
                          {8, 16, 8, 3584, 64, 20, 22, "a third of 1792, nearer to five rounds than half"}}) {
    BackwardCase c;
    ForwardCase& f = c.forward;
    f.dtype = TANDEM_BF16, f.head_dim = x.head_dim, f.mask = core::Mask::causal();
    f.batch = x.batch, f.kv_heads = x.kv_heads, f.q_heads = x.q_heads, f.q_len = f.k_len = x.tokens;
    SCOPED_TRACE(x.why);
    const auto args = arguments_of(shapes_of(c));
    ASSERT_TRUE(args);
    ASSERT_EQ(args->splits.count.value(), 1);
    const std::map<int, HeadRange> heads = heads_of(args->order, static_cast<int>(f.kv_heads));
    EXPECT_EQ(heads.begin()->second.second - heads.begin()->second.first, x.first);
    EXPECT_EQ(heads.rbegin()->second.second - heads.rbegin()->second.first, x.in_turn);
  }
}

TEST(BackwardOrder, OverlappingSectionsHaveEachTileOnceAndThoseOfAHeadInOrder) {
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    Random random(seed);
    const auto draw = [&random](int most) {
      return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
    };
    const int tiles = draw(40), heads = draw(12), batch = draw(6), together = draw(heads * batch);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << tiles << " tiles of " << heads
                                    << " heads x " << batch << ", sections of " << together);
    const auto order = backward::KeyOrder::overlapping(tiles, heads, batch, together);
    const std::map<int, HeadRange> found = heads_of(order, heads);
    EXPECT_EQ(static_cast<int>(found.size()), heads * batch);
    for (const auto& [number, head] : found) {
      EXPECT_EQ(head.tiles, tiles);
      if (const auto later = found.find(number + order.heads_at_work()); later != found.end()) {
        EXPECT_LT(head.last, later->second.first);
      }
      // Half of a section's tiles come before the next section's first.
      if (const auto next = found.find(number + together); next != found.end() && tiles > 1) {
        EXPECT_GT(next->second.first, head.first + (tiles - 1) / 2);
        EXPECT_LT(next->second.first, head.last + 2 * together);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::test
