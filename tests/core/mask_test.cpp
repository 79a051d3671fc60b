#include "core/mask.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <ostream>
#include <random>
#include <sstream>
#include <vector>

namespace tandem::core {
namespace {

/// The definition, one pair at a time.
bool visible(const Mask& mask, std::int64_t query, std::int64_t key, std::int64_t q_len, std::int64_t k_len) {
  const std::int64_t position = query + k_len - q_len;
  const bool left = mask.left == Mask::unlimited || key >= position - mask.left;
  const bool right = mask.right == Mask::unlimited || key <= position + mask.right;
  const auto chunk_of = [&](std::int64_t place) { return place < 0 ? -1 : place / mask.chunk; };
  return left && right && (mask.chunk == 0 || chunk_of(position) == chunk_of(key));
}

struct Shape {
  Mask mask;
  std::int64_t q_len, k_len;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "left " << s.mask.left << " right " << s.mask.right << " chunk " << s.mask.chunk << " sq "
             << s.q_len << " sk " << s.k_len;
}

/// Small lengths with every kind of limit, so that all relations between them occur.
Shape random_shape(std::mt19937& random) {
  const auto limit = [&]() -> std::int64_t {
    return random() % 4 == 0 ? Mask::unlimited : static_cast<std::int64_t>(random() % 90);
  };
  Shape shape{{limit(), limit()}, 1 + static_cast<int>(random() % 60), static_cast<int>(random() % 80)};
  if (random() % 4 == 0) shape.mask = Mask::causal();
  if (random() % 8 == 0) shape.mask = Mask::full();
  if (random() % 3 == 0) shape.mask.chunk = 1 + static_cast<std::int64_t>(random() % 90);
  return shape;
}

TEST(Mask, VisibleKeysAreThoseOfTheDefinition) {
  std::mt19937 random(11);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Shape s = random_shape(random);
    for (std::int64_t query = 0; query < s.q_len; ++query) {
      const KeyRange keys = s.mask.visible_keys(query, s.q_len, s.k_len);
      ASSERT_TRUE(0 <= keys.begin && keys.begin <= keys.end && keys.end <= s.k_len)
          << s << " query " << query;
      for (std::int64_t key = 0; key < s.k_len; ++key) {
        ASSERT_EQ(key >= keys.begin && key < keys.end, visible(s.mask, query, key, s.q_len, s.k_len))
            << s << " query " << query << " key " << key;
      }
    }
  }
}

TEST(Mask, VisibleRangesGrowWithTheQuery) {
  std::mt19937 random(12);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Shape s = random_shape(random);
    for (std::int64_t query = 1; query < s.q_len; ++query) {
      const KeyRange before = s.mask.visible_keys(query - 1, s.q_len, s.k_len);
      const KeyRange here = s.mask.visible_keys(query, s.q_len, s.k_len);
      ASSERT_TRUE(before.begin <= here.begin && before.end <= here.end) << s << " query " << query;
    }
  }
}

TEST(Mask, TransposedExchangesQueriesAndKeys) {
  std::mt19937 random(14);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    Shape s = random_shape(random);
    s.mask.chunk = 0;  // of bands
    for (std::int64_t key = 0; key < s.k_len; ++key) {
      const KeyRange queries = s.mask.transposed().visible_keys(key, s.k_len, s.q_len);
      for (std::int64_t query = 0; query < s.q_len; ++query) {
        ASSERT_EQ(query >= queries.begin && query < queries.end,
                  visible(s.mask, query, key, s.q_len, s.k_len))
            << s << " query " << query << " key " << key;
      }
    }
  }
}

TEST(Mask, CausalIsAlignedBottomRight) {
  EXPECT_EQ(Mask::causal().visible_keys(2, 3, 10).end, 10);  // the last query sees every key
  EXPECT_EQ(Mask::causal().visible_keys(0, 3, 10).end, 8);
  const KeyRange none = Mask::causal().visible_keys(6, 10, 3);  // position -1
  EXPECT_EQ(none.begin, none.end);
  EXPECT_EQ(Mask::causal().visible_keys(7, 10, 3).end, 1);
}

TEST(Mask, LongSequencesDoNotOverflow) {
  constexpr std::int64_t length = std::int64_t{1} << 40;
  const KeyRange all = Mask::full().visible_keys(length - 1, length, length);
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.end, length);
  const KeyRange window = Mask{4, 0}.visible_keys(length - 1, length, length);
  EXPECT_EQ(window.begin, length - 5);
  EXPECT_EQ(window.end, length);
}

TEST(Mask, IsFullWhereNeitherSideIsLimitedAndThereAreNoChunks) {
  EXPECT_TRUE(Mask::full().is_full());
  EXPECT_FALSE(Mask::causal().is_full());
  EXPECT_FALSE((Mask{{4, Mask::unlimited}}.is_full()));
  EXPECT_FALSE((Mask{{Mask::unlimited, 4}}.is_full()));
  EXPECT_FALSE((Mask{{Mask::unlimited, Mask::unlimited}, 7}.is_full()));
}

/// What a tile sees of one block: nothing, everything for every query, or something.
struct Sight {
  bool any = false, all = true;
};

Sight sight_of(const Shape& s, std::int64_t q_begin, std::int64_t q_end, std::int64_t key_begin,
               std::int64_t key_end) {
  Sight sight;
  for (std::int64_t query = q_begin; query < q_end; ++query) {
    for (std::int64_t key = key_begin; key < key_end; ++key) {
      const bool seen = key < s.k_len && visible(s.mask, query, key, s.q_len, s.k_len);
      sight.any |= seen;
      sight.all &= seen;
    }
  }
  return sight;
}

TEST(PrefixMask, IsAMaskWithoutALeftLimit) {
  std::mt19937 random(17);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Shape s = random_shape(random);
    const auto right = s.mask.narrowed<std::int32_t>().right;
    const BasicMask<std::int32_t> mask{BasicMask<std::int32_t>::unlimited, right};
    const auto q_len = static_cast<int>(s.q_len), k_len = static_cast<int>(s.k_len);
    for (int query = 0; query < q_len; ++query) {
      const auto expected = mask.visible_keys(query, q_len, k_len);
      const auto keys = PrefixMask{right}.visible_keys(query, q_len, k_len);
      ASSERT_EQ(keys.begin, 0) << s;
      ASSERT_EQ(keys.end, expected.end) << s << " query " << query;
      ASSERT_TRUE(expected.begin == 0 || expected.begin == expected.end) << s << " query " << query;
    }
  }
}

TEST(BlocksAside, FillUpTheWalkOfTheTile) {
  std::mt19937 random(19);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const Shape s = random_shape(random);
    const auto draw = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound));
    };
    const int block_n = 1 + static_cast<int>(random() % 20);
    const std::int64_t begin = draw(s.q_len), end = begin + 1 + draw(s.q_len - begin);
    const std::int64_t own_begin = begin + draw(end - begin), own_end = own_begin + 1 + draw(end - own_begin);
    const auto blocks_of = [&](std::int64_t first, std::int64_t past) -> BlockRanges {
      const auto narrow = [](std::int64_t length) { return static_cast<std::int32_t>(length); };
      return block_ranges(s.mask.narrowed<std::int32_t>(), narrow(first), narrow(past), narrow(s.q_len),
                          narrow(s.k_len), block_n);
    };
    const BlockRanges tile = blocks_of(begin, end), own = blocks_of(own_begin, own_end);
    for (const Direction direction : {Direction::first_key_first, Direction::last_key_first}) {
      const BlocksAside beside = aside(tile, own, direction);
      const BlockLoop whole = loop_over(tile, direction), part = loop_over(own, direction);
      ASSERT_EQ(beside.before + part.count + beside.after, whole.count) << s;
      for (int i = 0; i < part.count; ++i) ASSERT_EQ(part.block(i), whole.block(beside.before + i)) << s;
    }
  }
}

// What is visited as if it needed the mask costs time, and shows in no result.
TEST(BlockLoop, GoesThroughTheBlocksWithFullOnesInTheMiddle) {
  const BlockRanges ranges{2, 4, 7, 11};
  const BlockLoop up = loop_over(ranges, Direction::first_key_first);
  const BlockLoop down = loop_over(ranges, Direction::last_key_first);
  ASSERT_EQ(up.count, 9);
  ASSERT_EQ(down.count, 9);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(up.block(i), 2 + i);
    EXPECT_EQ(down.block(i), 10 - i);
    for (const BlockLoop& w : {up, down}) {
      const bool full = w.block(i) >= ranges.full_begin && w.block(i) < ranges.full_end;
      EXPECT_EQ(i >= w.full_begin && i < w.full_end, full) << i;
    }
  }
}

TEST(BlockRanges, CoverExactlyWhatIsVisible) {
  std::mt19937 random(13);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const Shape s = random_shape(random);
    const int block_n = 1 + static_cast<int>(random() % 20);
    const auto q_begin = static_cast<std::int64_t>(random() % static_cast<unsigned>(s.q_len));
    const std::int64_t q_end =
        q_begin + 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(s.q_len - q_begin));
    const auto r = block_ranges(s.mask, q_begin, q_end, s.q_len, s.k_len, block_n);
    const auto where = [&](int block) {
      std::ostringstream text;
      text << s << " queries [" << q_begin << ", " << q_end << ") block_n " << block_n << " block " << block;
      return text.str();
    };
    ASSERT_TRUE(0 <= r.begin && r.begin <= r.full_begin && r.full_begin <= r.full_end && r.full_end <= r.end)
        << where(-1);
    const int blocks = static_cast<int>((s.k_len + block_n - 1) / block_n);
    ASSERT_LE(r.end, blocks) << where(-1);
    for (int block = 0; block < blocks; ++block) {
      const Sight sight =
          sight_of(s, q_begin, q_end, std::int64_t{block} * block_n, std::int64_t{block + 1} * block_n);
      ASSERT_EQ(block >= r.begin && block < r.end, sight.any) << where(block);
      ASSERT_EQ(block >= r.full_begin && block < r.full_end, sight.all) << where(block);
    }
  }
}

/// A block of queries sees the tiles of keys that see it: the backward's tiles count on it when they take
/// turns.
TEST(BlockRanges, AreTheSameFromBothSides) {
  std::mt19937 random(15);
  for (int repeat = 0; repeat < 4000; ++repeat) {
    Shape s = random_shape(random);
    s.mask.chunk = 0;  // which the backward does not have
    const auto block_m = static_cast<std::int64_t>(1 + random() % 12),
               block_n = static_cast<std::int64_t>(1 + random() % 12);
    for (std::int64_t m = 0; m * block_m < s.q_len; ++m) {
      const auto tiles = block_ranges(s.mask, m * block_m, std::min((m + 1) * block_m, s.q_len), s.q_len,
                                      s.k_len, static_cast<int>(block_n));
      for (std::int64_t n = 0; n * block_n < s.k_len; ++n) {
        const auto blocks =
            block_ranges(s.mask.transposed(), n * block_n, std::min((n + 1) * block_n, s.k_len), s.k_len,
                         s.q_len, static_cast<int>(block_m));
        ASSERT_EQ(tiles.begin <= n && n < tiles.end, blocks.begin <= m && m < blocks.end)
            << s << " tile " << n << " of " << block_n << ", block " << m << " of " << block_m;
      }
    }
  }
}

TEST(BlockRanges, OfLengthsBeyond32Bits) {
  const std::int64_t k_len = std::int64_t{1} << 40;
  const auto r = block_ranges(Mask{300, 0}, std::int64_t{0}, std::int64_t{2}, std::int64_t{2}, k_len, 128);
  EXPECT_EQ(r.begin, k_len / 128 - 3);
  EXPECT_EQ(r.end, k_len / 128);
}

}  // namespace
}  // namespace tandem::core
