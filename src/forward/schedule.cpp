#include "forward/schedule.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/hopper.h"
#include "core/integers.h"
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
    const std::int64_t queries = queries_of_tile(variant, tiling.packing);
    for (std::int64_t first = 0; first < problem.q_len(); first += queries) {
      const std::int64_t past = std::min(first + queries, problem.q_len()),
                         keys = blocks_of_tile(problem, variant, first, past) * variant.block_n;
      lengths.us[static_cast<std::size_t>(lengths.count++)] =
          cost.tile_us + cost.key_us * static_cast<double>(keys);
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

/// What a block's tiles take in some rounds of an order.
double share(const core::TileScheduler& order, const TileLengths& lengths, int block, int first_round,
             int past_round) {
  double us = 0;
  for (int round = first_round; round < past_round; ++round) {
    const int position = order.position(round, block);
    if (position >= order.positions()) continue;
    if (const core::Tile tile = order.tile(position); tile.exists()) us += lengths[tile.m_block];
  }
  return us;
}

int rounds_of(const core::TileScheduler& order, int grid) {
  return static_cast<int>(core::ceil_div(order.positions(), grid));
}

/// The longest share that a block has of the tiles of `heads` heads that come head by head, over the mean
/// one. After twice as many rounds as a head has tiles, a block's tiles are the same ones again.
double unevenness(const core::TileScheduler& order, const TileLengths& lengths, std::int64_t heads,
                  int grid) {
  const int period = 2 * lengths.count, periods = order.positions() / grid / period;
  double longest = 0;
  const int blocks = std::min(lengths.count, grid);
  for (int i = 0; i < 2 * blocks; ++i) {  // others are as those, or have less of the last round
    const int block = i < blocks ? i : grid - 1 - (i - blocks);
    const double once = periods > 0 ? share(order, lengths, block, 0, period) : 0;
    longest = std::max(
        longest, periods * once + share(order, lengths, block, periods * period, rounds_of(order, grid)));
  }
  return longest * grid / (static_cast<double>(heads) * lengths.sum());
}

/// The longest share of an order of few rounds.
double longest_of_few(const core::TileScheduler& order, const TileLengths& lengths, int grid) {
  double longest = 0;
  for (int block = 0; block < grid; ++block)
    longest = std::max(longest, share(order, lengths, block, 0, rounds_of(order, grid)));
  return longest;
}

/// Packs of query heads whose keys and values stay in L2.
int cached_packs(const core::ForwardProblem& problem, const Packing& packing) {
  const std::int64_t of_kv_head = std::max<std::int64_t>(
      1, problem.k_len() * problem.kv_columns() * static_cast<std::int64_t>(sizeof(std::uint16_t)));
  const std::int64_t kv_heads =
      std::min(core::hopper_cached_bytes / of_kv_head, problem.kv_heads() * problem.batch());
  return static_cast<int>(kv_heads * (problem.group() >> packing.log2_heads));
}

/// The two orders that a falling mask leaves the choice of.
struct Orders {
  core::TileScheduler by_heads, by_length;
};

/// Whether tiles of different lengths may come head by head. With 8-bit operands of head dims up to 128 short
/// sequences took up to 1.4 times as long so (docs/performance/forward.md, Head by head).
bool may_come_by_heads(const ForwardVariant& variant) {
  return !variant.is_8_bit() || variant.head_dim > 128;
}

/// Whether it pays.
bool head_by_head_pays(const Orders& orders, const TileLengths& lengths, const core::ForwardProblem& problem,
                       std::int64_t heads, int grid) {
  constexpr int fewest_rounds = 3, few_rounds = 8, most_weighed = 12;
  const int rounds = lengths.count == 0 ? 0 : orders.by_heads.positions() / grid;
  if (rounds < fewest_rounds) return false;
  // What it saves grows with the bytes of a tile's keys and values beside its products.
  const bool wide = problem.head_dim() > 128, shares_keys = problem.group() > 2;
  // Of a head's tiles, the longest beside the shortest: how far apart in time they may come to run.
  constexpr double far_apart = 13;
  const double apart = lengths.count * lengths.spread(), most_apart = wide ? 20 : far_apart;
  if (apart > most_apart) return false;
  const double most_uneven = shares_keys               ? 1.04
                             : apart > far_apart       ? 1.05
                             : problem.head_dim() > 96 ? 1.1
                                                       : 1.06;
  if (rounds >= few_rounds && unevenness(orders.by_heads, lengths, heads, grid) <= most_uneven) return true;
  // Of few rounds the other order is uneven, too.
  const double as_good = wide ? 1.1 : 1.02;
  return rounds < most_weighed && !shares_keys &&
         longest_of_few(orders.by_heads, lengths, grid) <=
             as_good * longest_of_few(orders.by_length, lengths, grid);
}

core::TileScheduler find_schedule(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                  const Tiling& tiling, int grid) {
  const auto m_blocks = static_cast<int>(tiling.m_blocks), packs = static_cast<int>(tiling.packs);
  const auto batch = static_cast<int>(problem.batch());
  const core::TileScheduler onward(m_blocks, packs, batch, grid);
  if (problem.mask.right == core::Mask::unlimited) return onward;
  const auto by_length =
      core::TileScheduler::longest_first(m_blocks, packs, batch, grid, cached_packs(problem, tiling.packing));
  if (!may_come_by_heads(variant)) return by_length;
  // Where a block takes a head's next tile in each round, or the one before, blocks come to be far apart in
  // time.
  constexpr int few_tiles = 6;
  const int step = onward.position(1, 0) % m_blocks;
  const bool walks = m_blocks > few_tiles && (step == 1 || step == m_blocks - 1);
  const core::TileScheduler by_heads = walks || variant.mask == MaskKind::band
                                           ? core::TileScheduler::head_by_head(m_blocks, packs, batch, grid)
                                           : onward;
  const Orders orders{by_heads, by_length};
  const TileLengths lengths = TileLengths::of(problem, variant, tiling);
  const std::int64_t heads = tiling.packs * problem.batch();
  return head_by_head_pays(orders, lengths, problem, heads, grid) ? orders.by_heads : orders.by_length;
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
