// The shares of stream-K: every unit once, equal within one; any length that a device may hold.
#include "core/stream_k.h"

#include <gtest/gtest.h>
#include <limits>
#include <random>

namespace tandem::core {
namespace {

using Random = std::mt19937_64;

int draw(Random& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
}

std::uint64_t first_seed() {  // another one: --gtest_random_seed
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
}

TEST(Shares, CoverEveryUnitOnceAndAreEqualWithinOne) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int total = draw(random, 1, 3000), grid = draw(random, 1, 300), min_share = draw(random, 1, 4);
    const Shares shares(total, grid, min_share);
    ASSERT_LE(shares.blocks(), grid);
    ASSERT_EQ(shares.begin(0), 0);
    ASSERT_EQ(shares.begin(shares.blocks()), total);
    ASSERT_EQ(shares.begin(grid), total);
    for (int block = 0; block < shares.blocks(); ++block) {
      const int begin = shares.begin(block), end = shares.begin(block + 1);
      ASSERT_GE(end - begin, total / shares.blocks());
      ASSERT_LE(end - begin, total / shares.blocks() + 1);
      if (shares.blocks() > 1) ASSERT_GE(end - begin, min_share);
      for (int unit = begin; unit < end; ++unit) ASSERT_EQ(shares.owner(unit), block);
    }
  }
}

TEST(Shares, AllBlocksWorkWhereThereIsEnough) {
  EXPECT_EQ(Shares(264, 132, 2).blocks(), 132);
  EXPECT_EQ(Shares(263, 132, 2).blocks(), 131);
  EXPECT_EQ(Shares(1, 132, 2).blocks(), 1);
}

/// What UnitRule says, by looking at every key.
void expect_right(const UnitRule& rule, int raw) {
  const SequenceUnits units = rule.of(raw);
  ASSERT_GE(units.length, 0);
  ASSERT_LE(units.keys, rule.capacity);
  ASSERT_EQ(units.keys, units.length + rule.new_len);
  if (raw >= 0 && raw <= rule.capacity - rule.new_len) ASSERT_EQ(units.length, raw);
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
  if (!needed) ASSERT_EQ(units.units, 1);
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
