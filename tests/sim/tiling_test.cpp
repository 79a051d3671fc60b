// How queries are cut into tiles: which heads are packed, and that no row is lost or done twice.
#include <gtest/gtest.h>
#include <map>
#include <tuple>

#include "forward/plan.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using forward::ForwardVariant;
using forward::Tiling;

ForwardCase shape(std::int64_t q_len, std::int64_t q_heads, std::int64_t kv_heads) {
  ForwardCase c;
  c.q_len = q_len, c.q_heads = q_heads, c.kv_heads = kv_heads;
  c.k_len = 8192, c.head_dim = 128;
  c.block_m = 128;
  return c;
}

TEST(Tiling, PacksHeadsOfAGroupWhereThatSavesATenthOfTheTiles) {
  struct Expected {
    std::int64_t q_len, q_heads, kv_heads;
    int packed;
    std::int64_t tiles;
  };
  for (const Expected& e : {Expected{131, 32, 8, 4, 40},  // 64 unpacked
                            {96, 32, 8, 4, 24},           // 32
                            {1, 64, 1, 64, 1},            // 64
                            {3, 128, 1, 64, 4},           // 128; two packs share the key/value head
                            {17, 24, 2, 4, 6},            // 24; 4 is what a group of 12 has in powers of two
                            {769, 4, 1, 4, 25},           // 28
                            {897, 4, 1, 1, 32},           // 29 packed
                            {128, 32, 8, 1, 32},
                            {115, 32, 8, 1, 32},
                            {4096, 32, 8, 1, 1024},
                            {17, 15, 5, 1, 15},
                            {17, 8, 8, 1, 8}}) {
    const core::ForwardProblem problem = shapes_of(shape(e.q_len, e.q_heads, e.kv_heads));
    const ForwardVariant& variant = *forward::choose_variant(problem);
    ASSERT_EQ(variant.block_m, 128);
    const Tiling tiling = forward::tiling_of(problem, variant);
    SCOPED_TRACE(testing::Message() << e.q_len << " queries, " << e.q_heads << "/" << e.kv_heads << " heads");
    EXPECT_EQ(tiling.packing.heads(), e.packed);
    EXPECT_EQ(tiling.tiles(), e.tiles);
    EXPECT_EQ(forward::tile_count(problem, variant), e.tiles);
    EXPECT_EQ(forward::make_arguments(problem, variant, 132).packing.heads(), e.packed);
  }
}

/// Rows of a tensor of queries: batch entry, head, query.
using Row = std::tuple<int, int, int>;

/// How often the grid does each row; every tile's rows have to be of the key/value head that its blocks read.
std::map<Row, int> rows_done(const core::ForwardProblem& problem, const ForwardVariant& variant, int grid) {
  const forward::ForwardArguments args = forward::make_arguments(problem, variant, grid);
  std::map<Row, int> done;
  std::int64_t tiles = 0;
  for (int position = 0; position < args.schedule.positions(); ++position) {
    const core::Tile tile = args.schedule.tile(position);
    if (!tile.exists()) continue;
    ++tiles;
    const int kv_head = args.group.divide(tile.head).quotient;
    for (int row = tile.m_block * variant.block_m; row < (tile.m_block + 1) * variant.block_m; ++row) {
      const int query = args.packing.query(row), head = args.packing.head(tile.head, row);
      EXPECT_EQ(head / static_cast<int>(problem.group()), kv_head);
      if (query < args.q_len) ++done[{tile.batch, head, query}];
    }
  }
  EXPECT_EQ(tiles, forward::tile_count(problem, variant));
  return done;
}

TEST(Tiling, HasEveryHeadOfEveryQueryInOneRow) {
  static constexpr std::int64_t groups[] = {1, 2, 3, 4, 6, 7, 8, 12, 16, 32, 48, 64, 96, 128};
  int packed = 0;
  for (std::uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    Random random(seed);
    const auto draw = [&](std::uint64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
    ForwardCase c;
    c.seed = seed;
    c.kv_heads = draw(3), c.q_heads = c.kv_heads * groups[random() % std::size(groups)];
    c.batch = draw(2), c.q_len = draw(random() % 2 == 0 ? 30 : 500), c.k_len = draw(5000);
    c.head_dim = 64 * draw(4);
    if (random() % 2 == 0) c.mask = core::Mask::causal();
    SCOPED_TRACE(testing::Message() << c);
    const core::ForwardProblem problem = shapes_of(c);
    const ForwardVariant& variant = *forward::choose_variant(problem);
    packed += forward::tiling_of(problem, variant).packing.heads() > 1 ? 1 : 0;
    const auto done = rows_done(problem, variant, static_cast<int>(draw(132)));
    EXPECT_EQ(done.size(), static_cast<std::size_t>(c.batch * c.q_heads * c.q_len));
    for (const auto& [row, times] : done) ASSERT_EQ(times, 1);
  }
  EXPECT_GT(packed, 100);
}

}  // namespace
}  // namespace tandem::test
