#include "forward/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/dtype.h"
#include "core/hopper.h"
#include "forward/plan.h"

namespace tandem::forward {
namespace {

using core::ForwardProblem;

/// Bytes of a microsecond, as measured with all multiprocessors reading.
constexpr double memory_rate = 4.2e6;
/// Tiles of a sequence that are looked at; of more, evenly spread ones.
constexpr std::int64_t most_samples = 24;

/// Of the recipe's kernels, whatever their operand. Those that nobody measured, which mostly have nobody to
/// be compared with, cost about what the others do.
Price price_in(std::span<const Recipe> lines, const ForwardVariant& v) {
  for (const Recipe& r : lines)
    if (r.price.is_known() && r.mask == v.mask && r.softcap == v.softcap && r.block_m == v.block_m &&
        r.block_n == v.block_n && r.turn == v.turn)
      return r.price;
  return {v.block_m * v.block_n * ((v.head_dim + v.value_dim) / 2 + 32) / 1300, 1500};
}

template <int head_dim>
Price price_with(const ForwardVariant& v) {
  static constexpr auto lines = recipes<head_dim>();
  return price_in(v.has_narrow_values() ? std::span<const Recipe>(narrow_value_recipes) : lines, v);
}

/// Of head dim 64, where there is a choice.
Price price_of_fp16_scores(const ForwardVariant& v) {
  static constexpr auto lines = fp16_score_recipes<64>();
  for (const EightBitRecipe& r : lines)
    if (r.mask == v.mask && r.block_m == v.block_m) return r.price;
  return {};
}

Price price_of(const ForwardVariant& v) {
  if (v.fp16_scores) return price_of_fp16_scores(v);
  switch (v.head_dim) {
    case 64:
      return price_with<64>(v);
    case 96:
      return price_with<96>(v);
    case 128:
      return price_with<128>(v);
    case 192:
      return price_with<192>(v);
    case 256:
      return price_with<256>(v);
    default:
      return price_with<wide_head_dim>(v);
  }
}

/// A block that has a multiprocessor for itself, though there is room for two, is so much quicker.
constexpr double alone = 0.72;
bool is_alone(const ForwardVariant& variant, double rounds) {
  return variant.resident() > 1 && rounds <= 0.5;
}
/// Tiles of few rows wait for keys and values whose rows are no whole lines of L2, longer where they are no
/// whole sectors of 32 bytes.
constexpr double padded_rows = 1.1, odd_rows = 1.3;
/// Where L2 does not hold the keys and values of the heads that run together, tiles of few rows fetch them
/// too often.
constexpr double beyond_l2 = 1.6, l2_bytes = 40e6;

/// Where the rows of a head end within those of a tile's first consumer, the second one passes the tile's
/// blocks by (work.h), and a block takes so much of its time: 0.63 to 0.67 of all that four such calls on
/// long keys take (docs/performance/forward.md).
constexpr double lone_consumer = 0.62;

/// Of those heads, where tiles get longer with the query (core/schedule.h).
double bytes_in_use(const ForwardProblem& p, const Tiling& tiling, std::int64_t grid) {
  const std::int64_t packs = tiling.packs * p.batch(), tiles = std::max<std::int64_t>(1, tiling.m_blocks);
  const std::int64_t together = std::min(packs, grid / std::gcd(grid, tiles));
  const double sharing = static_cast<double>(p.group() >> tiling.packing.log2_heads);
  return static_cast<double>(together * p.k_len() * p.kv_columns() * 2) / std::max(1.0, sharing);
}

/// Key blocks of a tile over all tiles of a pack.
struct BlockCounts {
  double mean = 0, least = 0, most = 0;
};

BlockCounts count_blocks(const ForwardProblem& p, const ForwardVariant& variant, const Tiling& tiling) {
  const std::int64_t tile_queries = queries_of_tile(variant, tiling.packing);
  if (p.mask.is_full()) {
    const auto blocks = static_cast<double>(blocks_of_tile(p, variant, 0, 1));
    return {blocks, blocks, blocks};
  }
  const std::int64_t samples = std::min(tiling.m_blocks, most_samples);
  BlockCounts counts;
  for (std::int64_t i = 0; i < samples; ++i) {
    // The first and the last tile are among them.
    const std::int64_t tile = samples == 1 ? 0 : i * (tiling.m_blocks - 1) / (samples - 1);
    const std::int64_t first = tile * tile_queries, past = std::min(first + tile_queries, p.q_len());
    const auto blocks = static_cast<double>(blocks_of_tile(p, variant, first, past));
    counts.mean += blocks / static_cast<double>(samples);
    counts.least = i == 0 ? blocks : std::min(counts.least, blocks);
    counts.most = std::max(counts.most, blocks);
  }
  return counts;
}

/// Of a tile with few rows: how much longer a block of keys takes.
double fetching_rows(const ForwardProblem& p, const ForwardVariant& variant) {
  constexpr std::int64_t sector = 32;
  if (p.head_dim() == variant.head_dim) return 1;
  return p.head_dim() * static_cast<std::int64_t>(core::size_of(p.dtype())) % sector == 0 ? padded_rows
                                                                                          : odd_rows;
}

double bytes_of(const ForwardProblem& p) {
  const std::int64_t rows = p.q_len() * p.q_heads() + p.k_len() * p.kv_heads();
  return static_cast<double>(p.batch() * rows * p.kv_columns()) *
         static_cast<double>(core::size_of(p.dtype()));
}

/// Of a block of keys, of what both consumers' takes.
double consumers_share(const ForwardProblem& p, const ForwardVariant& variant) {
  const Tiling tiling = tiling_of(p, variant);
  const std::int64_t rows = p.q_len() << tiling.packing.log2_heads;
  const bool one_has_none =
      variant.consumers() == 2 && variant.decisions.loops_apart && rows <= variant.block_m / 2;
  return one_has_none ? lone_consumer : 1;
}

/// Against other ways the price has to be nearer than among tiles: a block of one multiprocessor is the
/// quicker the fewer others are busy. So much is left of its price, fitted to calls of few queries on H200s
/// (docs/performance/forward.md, Where queries are few).
double left_of_price(double rounds) { return 0.57 + 0.5 * rounds; }

/// What the fullest multiprocessor's tiles of few rows take to read keys and values that nobody else reads,
/// if each has a place of its own: they have little on their way, one alone less than two. Fitted to the same
/// calls.
double reading_us(const ForwardProblem& p, const ForwardVariant& variant, const CostEstimate& cost) {
  constexpr double rate_of_one = 38e3, rate_of_two = 44e3, begin_us = 1;  // bytes in a microsecond
  if (variant.resident() == 1 || cost.rounds > 1) return 0;
  const auto heads = static_cast<double>(p.batch() * p.kv_heads());
  const double readers = std::max(1., static_cast<double>(cost.tiles) / heads);
  const double bytes = cost.key_blocks * variant.block_n * static_cast<double>(p.kv_columns()) *
                       static_cast<double>(core::size_of(p.dtype())) / readers;
  const bool two = cost.tiles > core::hopper_sm_count;
  return begin_us + (two ? 2 * bytes / rate_of_two : bytes / rate_of_one);
}

/// `share`: of a block's price that is taken.
CostEstimate estimate_with(const ForwardProblem& problem, const ForwardVariant& variant, const Price& price,
                           int sm_count, double share) {
  const Tiling tiling = tiling_of(problem, variant);
  CostEstimate cost;
  cost.tiles = tiling.tiles() * problem.batch();
  if (cost.tiles == 0) return cost;
  const BlockCounts blocks = count_blocks(problem, variant, tiling);
  cost.key_blocks = blocks.mean;
  const std::int64_t grid = std::int64_t{sm_count} * variant.resident();
  cost.rounds = static_cast<double>(cost.tiles) / static_cast<double>(grid);
  const bool shared = variant.resident() > 1;  // a multiprocessor, by two blocks
  const bool causal = variant.mask == MaskKind::prefix && !problem.mask.is_full();
  const bool fetches = shared && causal && cost.rounds > 1 && bytes_in_use(problem, tiling, grid) > l2_bytes;
  const double fetching =
      (shared && cost.rounds > 1 ? fetching_rows(problem, variant) : 1) * (fetches ? beyond_l2 : 1);
  // What the last round leaves empty, which tiles of different lengths fill.
  const double spread = blocks.most > 0 ? (blocks.most - blocks.least) / blocks.most : 0;
  const double rounds = cost.rounds + (std::ceil(cost.rounds) - cost.rounds) * (1 - spread);
  const auto tile_us = [&](double key_blocks) {
    return 1e-3 * (price.tile_ns + price.block_ns * fetching * share * key_blocks);
  };
  cost.compute_us = std::max(rounds * tile_us(blocks.mean), tile_us(blocks.most)) *
                    (is_alone(variant, cost.rounds) ? alone : 1);
  cost.memory_us = bytes_of(problem) / memory_rate;
  return cost;
}

}  // namespace

CostEstimate estimate(const ForwardProblem& problem, const ForwardVariant& variant, int sm_count) {
  const Price price = price_of(variant);
  CostEstimate cost = estimate_with(problem, variant, price, sm_count, 1);
  if (cost.rounds > 1) cost.compute_us += 1e-2 * price.exposed_memory * cost.memory_us;
  return cost;
}

CostEstimate estimate_to_choose(const ForwardProblem& problem, const ForwardVariant& variant) {
  if (!problem.varlen.keeps_bits()) return estimate(problem, variant, core::hopper_sm_count);
  ForwardProblem usual = problem;
  usual.varlen.sequences = 8, usual.varlen.max_seqlen_q = usual.varlen.max_seqlen_k = 2048;
  return estimate(usual, variant, core::hopper_sm_count);
}

std::int64_t queries_of_tile(const ForwardVariant& variant, const Packing& packing) {
  return std::max(1, variant.block_m >> packing.log2_heads);
}

std::int64_t blocks_of_tile(const ForwardProblem& p, const ForwardVariant& variant, std::int64_t first,
                            std::int64_t past) {
  const auto blocks = core::block_ranges<core::Mask, std::int64_t>(p.mask, first, past, p.q_len(), p.k_len(),
                                                                   variant.block_n);
  return blocks.end - blocks.begin;
}

TileCost tile_cost(const ForwardVariant& variant) {
  const double tera_rate = variant.head_dim <= 64 ? 650 : 720;  // of the chip, in long loops
  const double key_flops = 2. * variant.block_m * (variant.head_dim + variant.value_dim);
  constexpr double tile_us = 3;
  return {tile_us, key_flops * core::hopper_sm_count / (1e6 * tera_rate)};
}

CostEstimate estimate_chosen(const core::ForwardProblem& problem) {
  const ForwardVariant& variant = *choose_variant(problem);
  CostEstimate cost = estimate_with(problem, variant, price_of(variant), core::hopper_sm_count,
                                    consumers_share(problem, variant));
  if (is_alone(variant, cost.rounds)) cost.compute_us *= left_of_price(cost.rounds) / alone;
  cost.memory_us = std::max(cost.memory_us, reading_us(problem, variant, cost));
  return cost;
}

}  // namespace tandem::forward
