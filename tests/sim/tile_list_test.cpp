// The list of tiles of variable lengths: what the kernel that makes it writes, for batches drawn by a seed.
#include "forward/tile_list.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <iterator>
#include <numeric>
#include <tuple>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "forward/listed_tile.h"
#include "forward/plan.h"
#include "forward/sequence_table.h"
#include "tests/sim/runs.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::VarlenCase;

struct ListedTile {
  int m_block, pack, q_begin, q_len, k_len;

  auto identity() const { return std::tuple(q_begin, pack, m_block); }
  /// Keys that its last query sees, causal.
  int length(int block_m) const { return std::min((m_block + 1) * block_m, q_len) + k_len - q_len; }
};

struct Listed {
  int block_m = 0, tile_queries = 0, sorted_tiles = 0, grid = 0;
  std::vector<ListedTile> tiles;

  std::size_t sorted_begin() const {
    return tiles.size() - std::min(tiles.size(), static_cast<std::size_t>(sorted_tiles));
  }
};

Listed list_of(const core::ForwardProblem& problem, int multiprocessors) {
  const forward::ForwardVariant& variant = *forward::choose_variant(problem);
  sim::Machine machine;
  machine.multiprocessors = multiprocessors;
  std::vector<std::int32_t> words;
  const hw::sim::Report report = sim::simulate_list(problem, variant, machine, words);
  EXPECT_TRUE(report.ok()) << report.text();
  const auto record = forward::make_list_record(problem, variant, multiprocessors, words.data());
  Listed listed{variant.block_m,
                record.arguments.tile_queries.value(),
                2 * record.arguments.grid,
                record.arguments.grid,
                {}};
  for (int i = 0; i < words[0]; ++i) {
    forward::ListedTile tile;
    std::memcpy(&tile, forward::place_in_list(words.data(), i), sizeof(tile));
    listed.tiles.push_back({tile.m_block, tile.pack, tile.q_begin, tile.q_len, tile.k_len});
  }
  return listed;
}

Listed list_of(const VarlenCase& c, int multiprocessors) {
  return list_of(test::VarlenTensors(c).problem(), multiprocessors);
}

/// Causal self-attention of packed sequences.
Listed list_of(const std::vector<std::int64_t>& lengths, std::int64_t heads, int multiprocessors) {
  VarlenCase c;
  c.q_lens = c.k_lens = lengths;
  c.q_heads = c.kv_heads = heads;
  c.mask = core::Mask::causal();
  return list_of(c, multiprocessors);
}

std::vector<std::int64_t> draw_lengths(std::uint64_t seed) {
  test::Random random(seed);
  std::vector<std::int64_t> lengths;
  for (std::uint64_t left = 3 + random() % 40; left > 0; --left)
    lengths.push_back(static_cast<std::int64_t>(random() % (std::uint64_t{1} << (5 + random() % 8))));
  return lengths;
}

class TileListTest : public testing::Test {
 protected:
  template <typename Check>
  void for_each_draw(Check check) {
    const std::uint64_t runs = test::number_from_environment("TANDEM_SIM_RUNS", 4);
    for (std::uint64_t seed = 1; seed <= runs; ++seed) {
      const std::vector<std::int64_t> lengths = draw_lengths(seed);
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", lengths " << testing::PrintToString(lengths));
      check(lengths, list_of(lengths, 1 + static_cast<std::int64_t>(seed % 3) * 2, 6));
    }
  }
};

TEST_F(TileListTest, HasEachTileOfEachHeadOnce) {
  for_each_draw([](const std::vector<std::int64_t>& lengths, const Listed& listed) {
    std::size_t expected = 0;
    for (const std::int64_t length : lengths)
      expected += static_cast<std::size_t>((length + listed.block_m - 1) / listed.block_m);
    std::vector<std::tuple<int, int, int>> found;
    for (const ListedTile& tile : listed.tiles) found.push_back(tile.identity());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(std::adjacent_find(found.begin(), found.end()), found.end());
    const int heads =
        1 + std::get<1>(*std::max_element(found.begin(), found.end(), [](const auto& a, const auto& b) {
          return std::get<1>(a) < std::get<1>(b);
        }));
    EXPECT_EQ(found.size(), expected * static_cast<std::size_t>(heads));
  });
}

// Lengths lie on the device, where nobody validates them; the list has room for as many tiles as rows make.
TEST_F(TileListTest, HasNoTilesWhereSequencesOverlap) {
  for (const core::Mask& mask : {core::Mask::full(), core::Mask::causal()}) {
    VarlenCase c;
    for (int i = 0; i < 40; ++i) c.q_lens.push_back(i % 2 == 0 ? 384 : 0);
    c.k_lens = c.q_lens, c.q_heads = c.kv_heads = 2, c.mask = mask;
    test::VarlenTensors tensors(c);
    core::ForwardProblem problem = tensors.problem();
    problem.varlen.max_seqlen_q = problem.q.shape[1];
    EXPECT_FALSE(list_of(problem, 132).tiles.empty());
    for (std::size_t i = 0; i < tensors.cu_seqlens_q.size(); ++i)
      tensors.cu_seqlens_q[i] = i % 2 == 0 ? 0 : static_cast<std::int32_t>(problem.q.shape[1]);
    EXPECT_TRUE(list_of(problem, 132).tiles.empty());
  }
}

TEST_F(TileListTest, OfWildLengthsHasTilesOfRowsThatExist) {
  const std::uint64_t runs = test::number_from_environment("TANDEM_SIM_RUNS", 6);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    test::Random random(seed);
    VarlenCase c;
    for (std::uint64_t left = 1 + random() % 600; left > 0; --left)
      c.q_lens.push_back(static_cast<std::int64_t>(random() % 6));
    c.q_lens[0] = 400, c.k_lens = c.q_lens, c.q_heads = c.kv_heads = 3, c.mask = core::Mask::causal();
    test::VarlenTensors tensors(c);
    core::ForwardProblem problem = tensors.problem();
    const auto rows = static_cast<std::int32_t>(problem.q.shape[1]);
    problem.varlen.max_seqlen_q = rows;
    const auto wild = [&] {
      const std::int32_t all[] = {INT32_MIN, -1, 0, rows, rows + 1, INT32_MAX};
      return all[random() % std::size(all)];
    };
    for (std::uint64_t left = random() % 4; left > 0; --left) {
      tensors.cu_seqlens_q[random() % tensors.cu_seqlens_q.size()] = wild();
      tensors.cu_seqlens_k[random() % tensors.cu_seqlens_k.size()] = wild();
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << c.q_lens.size() << " sequences");
    const Listed listed = list_of(problem, 4);
    EXPECT_LE(static_cast<std::int64_t>(listed.tiles.size()),
              forward::tile_count(problem, *forward::choose_variant(problem)));
    for (const ListedTile& tile : listed.tiles) {
      EXPECT_GE(tile.q_begin, 0);
      EXPECT_LE(std::int64_t{tile.q_begin} + tile.q_len, rows);
      EXPECT_TRUE(tile.m_block >= 0 && tile.m_block * listed.tile_queries < tile.q_len);
      EXPECT_TRUE(tile.pack >= 0 && tile.pack < 3 && tile.k_len >= 0 && tile.k_len <= rows);
    }
  }
}

TEST_F(TileListTest, TilesOfAHeadFollowOneAnotherBeforeTheSortedOnes) {
  std::size_t followed = 0;
  for_each_draw([&](const std::vector<std::int64_t>&, const Listed& listed) {
    for (std::size_t i = 0; i + 1 < listed.sorted_begin(); ++i) {
      const ListedTile &tile = listed.tiles[i], &next = listed.tiles[i + 1];
      if (tile.m_block > 0) {
        EXPECT_EQ(next.identity(), std::tuple(tile.q_begin, tile.pack, tile.m_block - 1)) << "behind " << i;
        ++followed;
      } else {  // another head's last tile
        EXPECT_EQ(next.m_block, (next.q_len - 1) / listed.tile_queries) << "behind " << i;
      }
    }
  });
  EXPECT_GT(followed, 0u);
}

TEST_F(TileListTest, TheLastTilesAreSortedByTheirLengths) {
  for_each_draw([](const std::vector<std::int64_t>&, const Listed& listed) {
    for (std::size_t i = listed.sorted_begin(); i + 1 < listed.tiles.size(); ++i) {
      const int own = listed.tiles[i].length(listed.block_m);
      EXPECT_GE(own + own / 32, listed.tiles[i + 1].length(listed.block_m)) << "tile " << i;
    }
  });
}

/// The longest block's share of the work over the mean, where a tile costs its length and a constant, and who
/// is done first takes the next.
double imbalance(const Listed& listed) {
  std::vector<double> loads(static_cast<std::size_t>(listed.grid));
  for (const ListedTile& tile : listed.tiles)
    *std::min_element(loads.begin(), loads.end()) += tile.length(listed.block_m) + 150;
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  return *std::max_element(loads.begin(), loads.end()) / mean;
}

TEST_F(TileListTest, BlocksOfTheGridGetEqualShares) {
  for (const std::int64_t length : {512, 2048, 8192}) {
    SCOPED_TRACE(length);
    EXPECT_LE(imbalance(list_of(std::vector<std::int64_t>(static_cast<std::size_t>(16384 / length), length),
                                8, 33)),
              1.05);
  }
  for_each_draw([](const std::vector<std::int64_t>& lengths, const Listed& listed) {
    double work = 0;
    int longest = 0;
    for (const ListedTile& tile : listed.tiles) {
      work += tile.length(listed.block_m) + 150;
      longest = std::max(longest, tile.length(listed.block_m) + 150);
    }
    const double mean = work / listed.grid;
    EXPECT_LE(imbalance(listed), 1.15 + 1.0 * longest / mean) << lengths.size() << " sequences";
  });
}

/// The order by its words (tile_order.h): sequences in classes of length, of each head after head, of these
/// the last tile first; the last tiles longest first, where lengths within a 64th count as one.
struct Model {
  const VarlenCase& c;
  int tile_queries, packs, sorted_tiles;

  struct Tile {
    int m_block, pack, q_begin, length;
  };

  int length(std::size_t sequence, std::int64_t m_block) const {
    const std::int64_t q_len = c.q_lens[sequence], k_len = c.k_lens[sequence];
    const std::int64_t last = std::min((m_block + 1) * tile_queries, q_len) - 1;
    const std::int64_t seen = std::clamp<std::int64_t>(last + k_len - q_len + c.mask.right + 1, 0, k_len);
    const std::int64_t window = c.mask.left + c.mask.right,
                       most = c.mask.chunk > 0 ? std::min(window, c.mask.chunk) : window;
    return static_cast<int>(std::min(seen, most + tile_queries));
  }
  /// 0: of 16k keys and more; each next of half as many, down to 5.
  static int class_of(int length) {
    int found = 5;
    for (int least = 1024; found > 0 && length >= least; least *= 2) --found;
    return found;
  }
  /// Lengths of one step are alike: 1 below 128, twice as wide from each octave to the next.
  static int step_of(int length) {
    int wide = 1;
    while (length / wide >= 128) wide *= 2;
    return length / wide * wide;
  }

  std::vector<Tile> row() const {
    std::vector<Tile> tiles;
    for (int of_class = 0; of_class < 6; ++of_class) {
      int q_begin = 0;
      for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
        const std::int64_t count = (c.q_lens[i] + tile_queries - 1) / tile_queries;
        for (int pack = 0; count > 0 && class_of(length(i, count - 1)) == of_class && pack < packs; ++pack)
          for (std::int64_t m = count - 1; m >= 0; --m)
            tiles.push_back({static_cast<int>(m), pack, q_begin, length(i, m)});
        q_begin += static_cast<int>(c.q_lens[i]);
      }
    }
    return tiles;
  }
  std::vector<std::tuple<int, int, int>> order() const {
    std::vector<Tile> tiles = row();
    const auto sorted = std::min(static_cast<std::ptrdiff_t>(tiles.size()), std::ptrdiff_t{sorted_tiles});
    std::stable_sort(tiles.end() - sorted, tiles.end(),
                     [](const Tile& a, const Tile& b) { return step_of(a.length) > step_of(b.length); });
    std::vector<std::tuple<int, int, int>> list;
    for (const Tile& tile : tiles) list.emplace_back(tile.q_begin, tile.pack, tile.m_block);
    return list;
  }
};

/// Checks the list of a drawn mask and machine against the model's: few multiprocessors leave most tiles
/// unsorted, many sort those of several sequences. Returns how many tiles are not sorted.
std::size_t expect_order_of_model(VarlenCase c, std::uint64_t seed, test::Random& random) {
  c.kv_heads = 1, c.lse = false;
  if (seed % 4 == 1) c.mask = core::Mask::causal();
  if (seed % 4 == 2) c.mask = {static_cast<std::int64_t>(random() % 700), 0};
  if (seed % 4 == 3) c.mask = {core::Mask::unlimited, static_cast<std::int64_t>(random() % 300)};
  if (seed % 2 == 0) c.mask.chunk = 1 + static_cast<std::int64_t>(random() % 2000);
  const int multiprocessors = 1 + static_cast<int>(random() % (random() % 2 == 0 ? 7 : 200));
  SCOPED_TRACE(testing::Message() << c << " on " << multiprocessors);
  const Listed listed = list_of(c, multiprocessors);
  const int packs = static_cast<int>(c.q_heads) * listed.tile_queries / listed.block_m;
  std::vector<std::tuple<int, int, int>> found;
  for (const ListedTile& tile : listed.tiles) found.push_back(tile.identity());
  EXPECT_EQ(found, (Model{c, listed.tile_queries, packs, listed.sorted_tiles}.order()));
  return listed.sorted_begin();
}

TEST_F(TileListTest, IsInTheOrderOfItsModel) {
  const std::uint64_t runs = test::number_from_environment("TANDEM_SIM_RUNS", 16);
  std::size_t unsorted = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    test::Random random(seed);
    VarlenCase c;
    for (std::uint64_t left = 2 + random() % 44; left > 0; --left) {
      c.q_lens.push_back(static_cast<std::int64_t>(random() % (std::uint64_t{1} << (3 + random() % 8))));
      c.k_lens.push_back(static_cast<std::int64_t>(random() % (std::uint64_t{1} << (3 + random() % 9))));
    }
    c.q_lens[1] = 300, c.k_lens[1] = static_cast<std::int64_t>(3000 + random() % 20000);
    c.q_heads = 1 + static_cast<std::int64_t>(random() % 20);
    unsorted += expect_order_of_model(c, seed, random);
  }
  EXPECT_GT(unsorted, 10 * runs);
}

// Sequences come one chunk after another: a class goes on, and tiles of several are sorted together.
TEST_F(TileListTest, IsInTheOrderOfItsModelWhereABlockHasFewerThreadsThanThereAreSequences) {
  constexpr std::uint64_t capacity = forward::SequenceTable::capacity;
  const std::uint64_t runs = test::number_from_environment("TANDEM_SIM_RUNS", 8);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    test::Random random(seed);
    VarlenCase c;
    for (std::uint64_t left = capacity - 1 + random() % (2 * capacity); left > 0; --left) {
      const bool is_long = random() % 50 == 0;
      c.q_lens.push_back(static_cast<std::int64_t>(random() % (is_long ? 500 : 6)));
      c.k_lens.push_back(static_cast<std::int64_t>(random() % (is_long ? 5000 : 60)));
    }
    c.q_heads = 1 + static_cast<std::int64_t>(random() % (seed % 2 == 0 ? 11 : 2));
    expect_order_of_model(c, seed, random);
  }
}

}  // namespace
}  // namespace tandem
