#include "forward/schedule.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/hopper.h"
#include "core/integers.h"
#include "core/mask.h"
#include "core/remembered.h"
#include "forward/cost.h"

namespace tandem::forward {
namespace {

/// What one tile of each place in a head takes of a block, of those of a head that may come head by head.
struct TileLengths {
  static constexpr int most = 32;
  std::array<double, most> us{};
  int count = 0;

  static TileLengths of(const core::ForwardProblem& problem, const ForwardVariant& variant,
                        const Tiling& tiling) {
    TileLengths lengths;
    if (tiling.m_blocks > most) return lengths;
    const TileCost cost = tile_cost(variant);
    const std::int64_t queries = variant.block_m >> tiling.packing.log2_heads;
    for (std::int64_t first = 0; first < problem.q_len(); first += queries) {
      const auto blocks = core::block_ranges<core::Mask, std::int64_t>(
          problem.mask, first, std::min(first + queries, problem.q_len()), problem.q_len(), problem.k_len(),
          variant.block_n);
      lengths.us[static_cast<std::size_t>(lengths.count++)] =
          cost.tile_us + cost.key_us * static_cast<double>((blocks.end - blocks.begin) * variant.block_n);
    }
    return lengths;
  }
  double operator[](int tile) const { return us[static_cast<std::size_t>(tile)]; }
  double sum() const { return std::accumulate(us.begin(), us.begin() + count, 0.0); }
  /// Of the longest and the shortest, beside their sum: 0 where all are equal.
  double spread() const {
    const auto [least, greatest] = std::minmax_element(us.begin(), us.begin() + count);
    return (*greatest - *least) / (*greatest + *least);
  }
};

/// The longest share that a block has of the tiles of `heads` heads that come head by head, over the mean
/// one. After twice as many rounds as a head has tiles, a block's tiles are the same ones again.
double unevenness(const core::TileScheduler& order, const TileLengths& lengths, std::int64_t heads,
                  int grid) {
  const int tiles = order.positions(), period = 2 * lengths.count, periods = tiles / grid / period;
  const auto share = [&](int block, int first_round, int past_round) {
    double us = 0;
    for (int round = first_round; round < past_round; ++round) {
      const int position = order.position(round, block);
      if (position < tiles) us += lengths[order.tile(position).m_block];
    }
    return us;
  };
  double longest = 0;
  const int rounds = static_cast<int>(core::ceil_div(tiles, grid)), blocks = std::min(lengths.count, grid);
  for (int i = 0; i < 2 * blocks; ++i) {  // others are as those, or have less of the last round
    const int block = i < blocks ? i : grid - 1 - (i - blocks);
    const double once = periods > 0 ? share(block, 0, period) : 0;
    longest = std::max(longest, periods * once + share(block, periods * period, rounds));
  }
  return longest * grid / (static_cast<double>(heads) * lengths.sum());
}

/// Packs of query heads whose keys and values stay in L2.
int cached_packs(const core::ForwardProblem& problem, const Packing& packing) {
  const std::int64_t of_kv_head = std::max<std::int64_t>(
      1, problem.k_len() * problem.kv_columns() * static_cast<std::int64_t>(sizeof(std::uint16_t)));
  const std::int64_t kv_heads =
      std::min(core::hopper_cached_bytes / of_kv_head, problem.kv_heads() * problem.batch());
  return static_cast<int>(kv_heads * (problem.group() >> packing.log2_heads));
}

/// Whether it pays that tiles of different lengths come in this order, head by head.
bool head_by_head_pays(const core::TileScheduler& order, const TileLengths& lengths,
                       const core::ForwardProblem& problem, std::int64_t heads, int grid) {
  constexpr int fewest_rounds = 8;
  // Of a head's tiles, the longest beside the shortest: how far apart in time they may come to run.
  constexpr double most_apart = 13;
  if (lengths.count == 0 || order.positions() < fewest_rounds * grid) return false;
  if (lengths.count * lengths.spread() > most_apart) return false;
  // What it saves grows with the bytes of a tile's keys and values beside its products.
  const bool rows_are_long = problem.head_dim() > 96;
  const double most_uneven = problem.group() > 2 ? 1.04 : rows_are_long ? 1.1 : 1.06;
  return unevenness(order, lengths, heads, grid) <= most_uneven;
}

core::TileScheduler find_schedule(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                  const Tiling& tiling, int grid) {
  const auto m_blocks = static_cast<int>(tiling.m_blocks), packs = static_cast<int>(tiling.packs);
  const auto batch = static_cast<int>(problem.batch());
  const core::TileScheduler onward(m_blocks, packs, batch, grid);
  if (problem.mask.right == core::Mask::unlimited) return onward;
  // Of a number of tiles that divides the grid, blocks would take one after another of a head's tiles, and be
  // far apart in time.
  constexpr int few_tiles = 6;
  const bool walks = grid % m_blocks == 0 && m_blocks > few_tiles;
  const core::TileScheduler by_heads = walks || variant.mask == MaskKind::band
                                           ? core::TileScheduler::head_by_head(m_blocks, packs, batch, grid)
                                           : onward;
  const TileLengths lengths = TileLengths::of(problem, variant, tiling);
  if (head_by_head_pays(by_heads, lengths, problem, tiling.packs * problem.batch(), grid)) return by_heads;
  return core::TileScheduler::longest_first(m_blocks, packs, batch, grid,
                                            cached_packs(problem, tiling.packing));
}

/// All that an order depends on.
struct ScheduleQuestion {
  ShapeOfProblem shape;
  int block_m, block_n, grid;

  std::uint64_t hash() const { return shape.hash() + static_cast<std::uint64_t>(grid); }
  friend bool operator==(const ScheduleQuestion&, const ScheduleQuestion&) = default;
};

}  // namespace

core::TileScheduler make_schedule(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                  const Tiling& tiling, int grid) {
  thread_local core::Remembered<ScheduleQuestion, core::TileScheduler> known;
  return known.of({ShapeOfProblem(problem), variant.block_m, variant.block_n, grid},
                  [&] { return find_schedule(problem, variant, tiling, grid); });
}

}  // namespace tandem::forward
