// How many splits of a group of query heads pay.
#include <algorithm>
#include <cstdint>

#include "backward/plan.h"
#include "core/integers.h"

namespace tandem::backward {
namespace {

/// Of a multiprocessor, in microseconds; from the rates of docs/performance/backward.md.
constexpr double flops_per_us = 4.2e6, tile_us = 4;
/// Of the kernel that adds what splits kept: its launch; and of all multiprocessors, bytes that are kept in
/// the kernel before and read in this one. Of the first ones nothing hides how long they take.
constexpr double combine_us = 2, kept_bytes_per_us = 2.2e6, first_kept_bytes_per_us = 0.75e6,
                 first_kept_bytes = 16 << 20;
/// Visits take longer where a tile that adds dQ has many heads in turn: by so much for each head of more than
/// two, up to eight (docs/performance/backward.md, Splits of groups).
constexpr double price_of_turn = 0.01;
constexpr int heads_with_price = 6;
/// More splits have to gain so much, since the model is one.
constexpr double least_gain = 0.98;
/// What splits may keep. More of them would gain part of the grid's last round and take gigabytes.
constexpr std::int64_t most_kept_bytes = std::int64_t{256} << 20;

/// Visits of the tiles of a head of keys to blocks of one head of queries.
struct Visits {
  std::int64_t all, most;  ///< of all tiles; of one

  static Visits of(const core::BackwardProblem& p, const BackwardVariant& keys) {
    const auto mask = p.mask.transposed();
    Visits visits{0, 0};
    for (std::int64_t first = 0; first < p.k_len(); first += keys.block_n) {
      const auto blocks = core::block_ranges(mask, first, std::min(first + keys.block_n, p.k_len()),
                                             p.k_len(), p.q_len(), keys.block_m);
      const std::int64_t own = blocks.end - blocks.begin;
      visits.all += own, visits.most = std::max(visits.most, own);
    }
    return visits;
  }
};

/// What the products of keys take.
struct Model {
  const Cropped& cropped;
  const Choice& choice;
  std::int64_t tiles;  ///< of all heads, where groups are not split
  Visits visits;

  double microseconds(int splits) const {
    const core::BackwardProblem& p = cropped.problem;
    const BackwardVariant& keys = choice.keys;
    const int grid = choice.grid;
    const double visit = 10.0 * keys.block_m * keys.block_n * keys.head_dim / flops_per_us;
    const auto group = static_cast<double>(p.group()), heads = static_cast<double>(p.batch() * p.kv_heads());
    const int in_turn = static_cast<int>(p.group()) / splits;
    const double longest = static_cast<double>(visits.most) * group / static_cast<double>(splits),
                 whole = static_cast<double>(visits.all) * group * heads;
    const auto rounds = static_cast<double>(core::ceil_div(tiles * splits, grid));
    // Tiles of one length come in rounds. Of several the longest come first, and they even out but for the
    // end.
    const bool one_length = whole == static_cast<double>(visits.most) * group * static_cast<double>(tiles);
    const double busy = one_length ? rounds * longest : std::max(longest, whole / grid + longest / 8);
    return busy * visit * turns(in_turn) + rounds * tile_us + (splits > 1 ? sum_of_splits(splits) : 0);
  }
  /// What a visit takes where a tile has so many heads in turn, of what it takes with one.
  double turns(int heads) const {
    if (!choice.adds_dq()) return 1;
    return 1 + price_of_turn * std::clamp(heads - few_in_turn, 0, heads_with_price);
  }
  /// Of dK and dV.
  std::int64_t kept_bytes(int splits) const {
    constexpr std::int64_t gradients = 2, bytes = sizeof(float);
    Choice split = choice;
    split.splits = splits;
    return gradients * bytes * kept_plan(cropped, split).elements;
  }
  double sum_of_splits(int splits) const {
    const auto all = static_cast<double>(kept_bytes(splits));
    const double first = std::min(all, first_kept_bytes);
    return combine_us + first / first_kept_bytes_per_us + (all - first) / kept_bytes_per_us;
  }
};

}  // namespace

int splits_that_pay(const Cropped& cropped, const Choice& choice) {
  const core::BackwardProblem& p = cropped.problem;
  if (cropped.empty() || p.group() == 1 || p.q_heads() == 0) return 1;
  constexpr int enough_rounds = 8;
  const std::int64_t tiles = core::ceil_div(p.k_len(), choice.keys.block_n) * p.batch() * p.kv_heads();
  if (tiles >= std::int64_t{enough_rounds} * choice.grid) return 1;
  const Model model{cropped, choice, tiles, Visits::of(p, choice.keys)};
  const auto group = static_cast<int>(p.group());
  int best = 1;
  double least = model.microseconds(1) * least_gain;
  for (int splits = 2; splits <= group; ++splits) {
    if (group % splits != 0 || model.kept_bytes(splits) > most_kept_bytes) continue;
    if (const double time = model.microseconds(splits); time < least) best = splits, least = time;
  }
  return best;
}

}  // namespace tandem::backward
