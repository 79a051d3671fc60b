// The shares of stream-K: every unit once, of equal cost within bounds; any length that a device may hold.
#include "core/stream_k.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace tandem::core {
namespace {

using Random = std::mt19937_64;

int draw(Random& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
}

std::uint64_t first_seed() {  // another one: --gtest_random_seed
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
}

TEST(Shares, CoverEveryPositionOnceAndAreEqualWithinOne) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int total = draw(random, 1, 3000), grid = draw(random, 1, 300), min_share = draw(random, 1, 4);
    const Shares shares(total, Divisor(grid), Divisor(min_share));
    ASSERT_LE(shares.blocks(), grid);
    ASSERT_EQ(shares.begin(0), 0);
    ASSERT_EQ(shares.begin(shares.blocks()), total);
    ASSERT_EQ(shares.begin(grid), total);
    for (int block = 0; block < shares.blocks(); ++block) {
      const int begin = shares.begin(block), end = shares.begin(block + 1);
      ASSERT_GE(end - begin, total / shares.blocks());
      ASSERT_LE(end - begin, total / shares.blocks() + 1);
      if (shares.blocks() > 1) {
        ASSERT_GE(end - begin, min_share);
      }
      for (int position = begin; position < end; ++position) ASSERT_EQ(shares.owner(position), block);
    }
  }
}

TEST(Shares, AllBlocksWorkWhereThereIsEnough) {
  EXPECT_EQ(Shares(264, Divisor(132), Divisor(2)).blocks(), 132);
  EXPECT_EQ(Shares(263, Divisor(132), Divisor(2)).blocks(), 131);
  EXPECT_EQ(Shares(1, Divisor(132), Divisor(2)).blocks(), 1);
}

/// Streams in a row, and what each block of a grid gets of them.
struct Assignment {
  struct Block {
    int units = 0, pieces = 0;  ///< pieces: runs of units of one stream
  };
  std::vector<Block> blocks;
  std::vector<int> times;  ///< that each unit is assigned, stream after stream

  Assignment(const std::vector<int>& streams, int overhead, int grid, int min_share) {
    const int units = std::accumulate(streams.begin(), streams.end(), 0);
    const Shares shares(positions(units, static_cast<int>(streams.size()), overhead), Divisor(grid),
                        Divisor(min_share));
    blocks.resize(static_cast<std::size_t>(shares.blocks()));
    times.assign(static_cast<std::size_t>(units), 0);
    for (int b = 0; b < shares.blocks(); ++b) {
      std::size_t stream = 0;
      int stream_begin = 0, first_unit = 0;
      for (int at = shares.begin(b); at < shares.begin(b + 1);) {
        StreamSpan span{streams[stream], overhead};
        while (at >= stream_begin + span.size()) {
          stream_begin += span.size(), first_unit += span.units;
          span.units = streams[++stream];
        }
        if (const int skipped = span.to_next_unit(at - stream_begin); skipped > 0) {
          at += skipped;
          continue;
        }
        const int end = std::min(stream_begin + span.units, shares.begin(b + 1));
        Block& block = blocks[static_cast<std::size_t>(b)];
        block.units += end - at, ++block.pieces;
        for (; at < end; ++at) ++times[static_cast<std::size_t>(first_unit + at - stream_begin)];
      }
    }
  }

  int highest_cost(int overhead) const {
    int highest = 0;
    for (const Block& b : blocks) highest = std::max(highest, b.units + overhead * b.pieces);
    return highest;
  }
};

std::vector<int> draw_streams(Random& random) {
  std::vector<int> streams(static_cast<std::size_t>(draw(random, 1, 200)));
  const int longest = draw(random, 1, 3) == 1 ? 400 : 8;
  for (int& units : streams) units = draw(random, 1, draw(random, 0, 3) == 0 ? longest : 2);
  return streams;
}

TEST(StreamSpans, EveryUnitIsDealtOnceHoweverSharesFallAmongOverheads) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int> streams = draw_streams(random);
    const int overhead = draw(random, 0, 5), grid = draw(random, 1, 300), min_share = draw(random, 1, 4);
    const Assignment assigned(streams, overhead, grid, min_share);
    ASSERT_EQ(std::ranges::count(assigned.times, 1), static_cast<std::ptrdiff_t>(assigned.times.size()));
  }
}

TEST(StreamSpans, NoBlockCostsMoreThanTheMeanAUnitAndAnOverhead) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int> streams = draw_streams(random);
    const int overhead = draw(random, 0, 5), grid = draw(random, 1, 300);
    const Assignment assigned(streams, overhead, grid, 1);
    const int cost =
        std::accumulate(streams.begin(), streams.end(), overhead * static_cast<int>(streams.size()));
    ASSERT_LE(assigned.highest_cost(overhead),
              cost / static_cast<int>(assigned.blocks.size()) + 1 + overhead);
  }
}

TEST(StreamSpans, ManyShortStreamsBesideALongOneAreSpreadOverBlocks) {
  std::vector<int> streams(16, 1);
  streams[0] = 128;  // 1 x 16384 + 15 x 64 keys
  const Assignment blind(streams, 0, 16, 1), assigned(streams, 1, 16, 1);
  EXPECT_EQ(blind.highest_cost(1), 17);     // eight streams and a piece of the long one
  EXPECT_EQ(assigned.highest_cost(1), 11);  // (143 + 16) / 16 and what rounding to units takes
}

/// What UnitRule says, by looking at every key.
void expect_right(const UnitRule& rule, int raw) {
  const SequenceUnits units = rule.of(raw);
  ASSERT_GE(units.length, 0);
  ASSERT_LE(units.keys, rule.capacity);
  ASSERT_EQ(units.keys, units.length + rule.new_len);
  if (raw >= 0 && raw <= rule.capacity - rule.new_len) {
    ASSERT_EQ(units.length, raw);
  }
  ASSERT_GE(units.units, 1);
  const int size = rule.unit.value(), first = units.first_unit * size, past = first + units.units * size;
  bool needed = false, first_needed = false, last_needed = false;
  for (int key = 0; key < units.keys; ++key) {
    bool seen = key >= units.length;  // it has to be appended
    for (int query = 0; query < rule.q_len; ++query) {
      const auto keys = rule.mask.visible_keys(query, rule.q_len, units.keys);
      seen = seen || (key >= keys.begin && key < keys.end);
    }
    if (!seen) continue;
    needed = true;
    ASSERT_TRUE(key >= first && key < past) << key;
    first_needed = first_needed || key < first + size;
    last_needed = last_needed || key >= past - size;
  }
  ASSERT_EQ(first_needed && last_needed, needed) << "units that nobody needs";
  if (!needed) {
    ASSERT_EQ(units.units, 1);
  }
}

TEST(UnitRule, TheUnitsOfASequenceHoldWhatItsQueriesSeeAndWhatItAppends) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    UnitRule rule{};
    rule.q_len = draw(random, 1, 8);
    rule.new_len = draw(random, 0, 1) * draw(random, 0, 20);
    rule.capacity = rule.new_len + draw(random, 0, 300);
    rule.unit = Divisor(draw(random, 1, 3) * 16);
    if (random() % 2 == 0) rule.mask.right = draw(random, 0, 1) * draw(random, 0, 50);
    if (random() % 2 == 0) rule.mask.left = draw(random, 0, 100);
    const int raw[] = {
        draw(random, 0, 320),        0, -1, std::numeric_limits<int>::min(), std::numeric_limits<int>::max(),
        rule.capacity - rule.new_len};
    for (const int length : raw) {
      SCOPED_TRACE(length);
      expect_right(rule, length);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tandem::core
