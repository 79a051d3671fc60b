#include "decode/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/hopper.h"
#include "core/integers.h"
#include "core/stream_k.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;

/// What one warpgroup takes where nobody is in its way.
struct TilePrice {
  int head_dim, query_rows;
  double stream_us;  ///< to begin a stream: its queries have to come
  double block_us;   ///< for a block of keys that is there: products and softmax, one after another
};
// The numbers of this file were fitted to 4,818 measurements of 404 shapes on H200s: every tile, with
// several shares (docs/decode.md, "Which tile, which shares"). Those of head dim 512 were not measured: they
// are what its products take at the rate of the others'. Those of 576 were fitted to 20 latent steps.
constexpr std::array tile_prices{
    TilePrice{64, 8, 0.79, 0.73},  TilePrice{64, 16, 0.94, 0.85},  TilePrice{64, 32, 1.06, 1.28},
    TilePrice{128, 8, 0.78, 0.96}, TilePrice{128, 16, 0.86, 1.16}, TilePrice{128, 32, 1.05, 1.33},
    TilePrice{128, 64, 4.4, 2.19}, TilePrice{256, 8, 1.16, 0.93},  TilePrice{256, 16, 1.58, 1.20},
    TilePrice{256, 32, 5.0, 1.15}, TilePrice{512, 16, 1.1, 1.25},  TilePrice{512, 32, 2.0, 1.55},
    TilePrice{576, 16, 4.0, 1.00}, TilePrice{576, 32, 7.5, 1.60}};
// Those of two warpgroups, fitted to 98 measurements (docs/performance/decode.md, "Two warpgroups"); of 64
// rows at head dim 64 set by later ones ("One thread for a block"); of head dim 576 computed from its
// products, exponentials and waits.
constexpr std::array paired_prices{TilePrice{64, 64, 1.6, 0.80}, TilePrice{64, 128, 1.8, 1.75},
                                   TilePrice{128, 64, 2.4, 0.50}, TilePrice{128, 128, 4.4, 2.40},
                                   TilePrice{576, 64, 9.0, 1.95}};
/// Of a block of 64 keys where the others of the head dim have 128.
constexpr double half_block = 0.61;

/// Bytes a microsecond: from memory, from L2, and of one multiprocessor.
constexpr double memory_rate = 4.56e6, l2_rate = 8.24e6, sm_rate = 95e3;
/// From L2 where each of two warpgroups takes every other block of keys: no more than from memory, so that
/// several tiles that read the same keys gain nothing by it.
constexpr double split_keys_rate = 4.6e6;
/// From L2 where rows are no whole sectors of 32 bytes, as of head dims 40 and 72: what such steps reached.
constexpr double odd_row_rate = 3.5e6;
/// Of a byte, where head dims run padded and rows are no whole lines of L2.
constexpr double part_line_price = 1.1;
/// The same of a block that streams from memory, once the stages that were fetched ahead are used up; at head
/// dim 256 by the tile's rows: 8, 16, 32.
constexpr double stream_rate = 50e3;
constexpr std::array wide_stream_rates{38e3, 48e3, 31e3};
constexpr std::int64_t blocks_ahead = 2;
/// What is left of these rates once a block has read so many of keys and memory's queues are full: of one
/// block's; and where multiprocessors have two, of memory's and of L2's.
constexpr double steady_after = 4, steady_stream = 0.76, steady_pair = 0.9, steady_pair_l2 = 0.75;
/// Of a multiprocessor that reads on while most others are done.
constexpr double lone_sm_rate = 66e3;
/// A load while the other of two blocks of keys is multiplied, of what memory's rate says: fitted to latent
/// steps.
constexpr double held_load = 1.65;
/// Of a launch; of a partial result of 1024 numbers.
constexpr double launch_us = 4.09, partial_us = 0.50;
/// Less of it where blocks know their streams: lengths are not added up; and where their first keys are on
/// their way meanwhile.
constexpr double known_stream_us = 0.97, known_keys_us = 0.67;
/// More of a step whose blocks do not know their streams: of each length beyond so many that launch_us has.
constexpr double length_us = 0.013;
constexpr std::int64_t usual_lengths = 64;
/// Less where blocks do, of short steps (is_short), by how many thread blocks a multiprocessor has: of blocks
/// with whole streams, and with parts; and more of whole ones where at most half of the multiprocessors have
/// one. Fitted to 285 steps (docs/performance/decode.md, How blocks fall), as is all that asks is_short; of
/// tiles of 16 rows, which three blocks have, to 30 more.
struct Known {
  double whole_us, part_us, few_us;
};
constexpr std::array known_short_streams{Known{2.5, 1.3, 0.6}, Known{1.6, 2.15, 0.6}, Known{0.7, 1.95, 0.6}};
constexpr Known known_wider_streams{0, 1.95, 0};
constexpr int narrowest_rows = 8;
/// From memory, of two neighbouring multiprocessors with one thread block each: some are neighbours once more
/// than half have one.
constexpr double neighbours_rate = 80e3;
/// Of whole streams by three blocks: where there are up to 1.18 times as many as multiprocessors, and where
/// there are 1.5 to 2 times as many, of which some multiprocessors get three.
constexpr double thirds_of_few = 0.77, thirds_uneven = 1.08;
/// Keys of a part that one block visits, whatever the others' lengths. Of a lone sequence as many blocks as
/// are in flight: such steps were up to 9 % slower with longer ones (docs/performance/decode.md, The order of
/// a benchmark).
constexpr std::int64_t most_known_keys = 1024;
/// The same of a whole stream, in bytes of keys and values: as long as those of 1280 keys of head dim 128.
constexpr std::int64_t most_known_bytes = 640 * 1024;
/// Of parts where nine tenths of all thread blocks have one: at head dim 64, by three of a multiprocessor; at
/// 128, by two or three (docs/performance/decode.md, Parts that fill the chip).
constexpr double full_parts_64 = 0.94, full_parts_128 = 0.91;
/// What it takes to begin where multiprocessors have three thread blocks.
constexpr double thirds_us = 0.3;
/// Of blocks with a stream of their own, more than there is room for, fitted to steps that were measured so
/// (docs/performance/decode.md, More streams than blocks): of the launch; of a stream, besides its products;
/// and bytes that all read in a microsecond.
constexpr double own_launch_us = 2.0, own_stream_us = 3.6, own_rate = 5.0e6;
/// Such bytes where the second round is the last one, by two blocks: not all read then. Three have hardly a
/// second round where that was measured.
constexpr double own_second_rate = 4.0e6;
/// It pays from about one round on.
constexpr double fewest_own_rounds = 0.9;
/// More of a stream that is listed, beside other work: its entry has to come, and its last block is part
/// full.
constexpr double listed_stream_us = 2;
/// Of a merge in the kernel: at all, and for each round of loads.
constexpr double merge_us = 0.33, round_us = 0.73;
/// Of the combine kernel: where it has nothing to do, where it has, and for each round of loads.
constexpr double idle_combine_us = 1.8, combine_us = 4.7, combine_round_us = 1.4;
/// Of a partial result for it: at all, and for each 1024 numbers.
constexpr double wide_partial_us = 1.0, wide_numbers_us = 0.3;

std::int64_t all_streams(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.batch() * streams_of(problem, variant);
}

/// Whether streams are as those of the steps that were measured again (cost.h), whatever their length.
bool has_narrow_streams(const DecodeProblem& problem, const DecodeVariant& variant) {
  constexpr int widest_head = 128;
  const bool narrow = variant.query_rows == narrowest_rows ||
                      (variant.resident == 3 && variant.query_rows == 2 * narrowest_rows);
  return variant.algorithm == Algorithm::shared_p && narrow && variant.head_dim <= widest_head &&
         streams_of(problem, variant) == problem.kv_heads() && problem.batch() > 1 &&
         3 * all_streams(problem, variant) >= core::hopper_sm_count;
}

/// Of all sequences, that a team visits one after another.
std::int64_t streams_in_turn(const DecodeProblem& problem, const DecodeVariant& variant,
                             const TeamShape& shape) {
  return problem.batch() * (streams_of(problem, variant) / shape.team_blocks);
}

/// That of the widest tile where a kernel has none.
TilePrice price_of(const DecodeVariant& variant) {
  const TilePrice* price = nullptr;
  for (const TilePrice& p : paired_prices)
    if (variant.paired() && p.head_dim == variant.head_dim && p.query_rows == variant.query_rows) return p;
  for (const TilePrice& p : tile_prices)
    if (p.head_dim == variant.head_dim && (price == nullptr || price->query_rows < variant.query_rows))
      price = &p;
  const bool halved = variant.head_dim <= 128 && variant.query_rows <= 16 && variant.block_n == 64;
  return {price->head_dim, price->query_rows, price->stream_us, price->block_us * (halved ? half_block : 1)};
}

/// How streams that are equally long are shared out.
struct Cut {
  std::int64_t units;         ///< of a stream
  std::int64_t blocks;        ///< that have a share
  std::int64_t share;         ///< units of the longest one
  double mean_share;          ///< of those that read together
  bool whole;                 ///< no stream is cut
  bool even;                  ///< nor begun where another ends
  std::int64_t in_parts = 0;  ///< so many of each stream, where shares end with streams

  double streams_begun() const {
    const double streams = static_cast<double>(share) / static_cast<double>(units);
    return even ? std::max(1., streams) : 1 + streams;
  }
  std::int64_t parts() const {
    if (whole) return 1;
    if (in_parts > 0) return in_parts;
    if (even) return units / share;
    return share < units ? core::ceil_div(units, share) + 1 : 2;
  }
};

std::int64_t units_of_stream(const DecodeProblem& problem, const DecodeVariant& variant) {
  return std::max<std::int64_t>(1, core::ceil_div(problem.capacity(), variant.block_n));
}

Cut cut_of(const DecodeProblem& problem, const DecodeVariant& variant, const TeamShape& shape,
           const EvenShare& least) {
  Cut cut{};
  cut.units = units_of_stream(problem, variant);
  const std::int64_t in_turn = streams_in_turn(problem, variant, shape);
  if (least.ends_with_streams) {
    cut.in_parts = core::ceil_div(cut.units, least.units),
    cut.blocks = in_turn * cut.in_parts * shape.team_blocks;
    cut.share = least.units,
    cut.mean_share = static_cast<double>(cut.units) / static_cast<double>(cut.in_parts);
    cut.whole = cut.in_parts == 1, cut.even = true;
    return cut;
  }
  constexpr std::int64_t most = std::int64_t{1} << 30;  // more is refused
  const auto total = static_cast<int>(std::min(in_turn * cut.units, most));
  const core::Shares shares(total, core::Divisor(shape.teams), core::Divisor(static_cast<int>(least.units)));
  cut.blocks = std::int64_t{shares.blocks()} * shape.team_blocks;
  cut.share = shares.begin(1), cut.mean_share = static_cast<double>(cut.share);
  const bool equal = cut.share * shares.blocks() == total;
  cut.whole = equal && cut.share % cut.units == 0;
  cut.even = cut.whole || (equal && cut.units % cut.share == 0);
  return cut;
}

/// What it takes to bring the parts of cut streams together.
double merging_us(const DecodeVariant& variant, const Cut& cut) {
  constexpr int parts_in_flight = 16;
  const bool in_groups = variant.merges_in_groups(cut.parts());
  const auto groups = in_groups ? 2. : static_cast<double>(core::ceil_div(cut.parts(), parts_in_flight));
  const double numbers = variant.query_rows * variant.value_dim, partials = cut.even ? 1 : 2;
  if (variant.merges_apart()) {
    if (cut.whole) return cut.units > 1 ? idle_combine_us : 0;
    const double combining_us = combine_us + combine_round_us * groups;
    if (variant.values_in_keys()) return combining_us;  // fitted together
    return combining_us + partials * (wide_partial_us + wide_numbers_us * numbers / 1024);
  }
  if (cut.whole) return 0;
  const double rounds =
      std::max(1., numbers / 4 / variant.consumer_threads() / (variant.resident == 1 ? 2 : 1));
  return (in_groups ? 2 : 1) * merge_us + round_us * rounds * groups + partials * partial_us * numbers / 1024;
}

double stream_rate_of(const DecodeVariant& variant) {
  if (variant.head_dim < 256) return stream_rate;
  if (variant.head_dim > 256) return std::numeric_limits<double>::infinity();
  return wide_stream_rates[variant.query_rows <= 8 ? 0 : variant.query_rows <= 16 ? 1 : 2];
}

/// Of a step's blocks of keys: what one takes a thread block, by what it waits for.
struct Reading {
  double block_us;          ///< products and softmax
  double bytes, row_tiles;  ///< of a block of keys; that read it
  double near_rate;         ///< of what memory has
  double far_rate;          ///< of what L2 has
  double stream_us;         ///< of a block whose stages are used up, alone
  double beside_us;         ///< of a block while the neighbour reads one too
  bool holds;               ///< blocks of keys are values too: none is given back before its last product
};

Reading reading_of(const DecodeProblem& problem, const DecodeVariant& variant, double block_us) {
  const std::int64_t element = variant.eight_bit() ? 1 : 2, row_bytes = problem.key_columns() * element;
  constexpr std::int64_t sector = 32, line = 128;  // of L2
  const bool odd_rows = row_bytes % sector != 0, part_lines = row_bytes % line != 0;
  const bool padded = problem.key_columns() < variant.head_dim;
  const double bytes = static_cast<double>(row_bytes * variant.block_n) * (variant.values_in_keys() ? 1 : 2) *
                       (padded && part_lines ? part_line_price : 1);
  const auto row_tiles = static_cast<double>(streams_of(problem, variant) / problem.kv_heads());
  return {block_us,
          bytes,
          row_tiles,
          memory_rate,
          odd_rows ? odd_row_rate : (variant.splits_keys() ? split_keys_rate : l2_rate),
          bytes / row_tiles / stream_rate_of(variant),
          variant.is_alone() && is_short(problem, variant) ? 2 * bytes / neighbours_rate : 0,
          variant.values_in_keys()};
}

/// Of a block that has read for a while.
Reading steady(Reading reading, std::int64_t resident) {
  reading.stream_us /= steady_stream;
  if (resident > 1) reading.near_rate *= steady_pair, reading.far_rate *= steady_pair_l2;
  return reading;
}

/// Where so many multiprocessors have so many thread blocks each, and one reads memory at `rate`.
double block_us_of(const Reading& reading, std::int64_t multiprocessors, std::int64_t resident, double rate) {
  const double own = static_cast<double>(resident) * reading.bytes;
  const double all = static_cast<double>(multiprocessors) * own;
  const bool has_neighbours = 2 * multiprocessors > core::hopper_sm_count;
  const double loads_us =
      std::max({all / reading.row_tiles / reading.near_rate, all / reading.far_rate, own / sm_rate,
                own / reading.row_tiles / rate, has_neighbours ? reading.beside_us : 0});
  const double in_turn_us = reading.holds ? (reading.block_us + held_load * loads_us) / 2 : 0;
  return std::max({reading.block_us, loads_us, in_turn_us});
}

/// What the blocks of the longest share take at such rates. Multiprocessors have equal parts of memory's
/// rate: where some have a thread block more, those go on alone when the others are done.
double share_us_at(const Cut& cut, const Reading& reading) {
  const std::int64_t fewest = cut.blocks / core::hopper_sm_count,
                     left_over = cut.blocks % core::hopper_sm_count;
  const std::int64_t most = fewest + (left_over > 0 ? 1 : 0),
                     busy = fewest > 0 ? core::hopper_sm_count : cut.blocks;
  const bool uneven = fewest > 0 && left_over > 0;
  const double usual_us = block_us_of(reading, busy, uneven ? fewest : most, sm_rate);
  const double share = cut.mean_share, ahead = std::min(share, static_cast<double>(blocks_ahead));
  const double us = usual_us * ahead + std::max(usual_us, reading.stream_us) * (share - ahead);
  if (!uneven) return us;
  const double fullest_us = std::max(block_us_of(reading, busy, most, sm_rate), reading.stream_us);
  const double left = share - std::min(share, us / fullest_us);
  return us + left * block_us_of(reading, left_over, most, lone_sm_rate);
}

/// The same, where rates change once queues are full.
double share_us(const Cut& cut, const Reading& reading, std::int64_t resident) {
  const double first_us = share_us_at(cut, reading);
  if (cut.mean_share <= steady_after) return first_us;
  const double steady_us = share_us_at(cut, steady(reading, resident));
  return first_us + (1 - steady_after / cut.mean_share) * (steady_us - first_us);
}

/// Keys of a part that a block may know, where streams are cut in so many.
std::int64_t most_known(const DecodeProblem& problem, const DecodeVariant& variant, std::int64_t parts) {
  if (problem.batch() == 1) return std::int64_t{variant.stages} * variant.block_n;
  return std::max(most_known_keys,
                  parts == 1 ? most_known_bytes * variant.block_n / variant.block_bytes() : 0);
}

/// Streams for each thread block that there is room for.
double rounds_of_streams(const DecodeProblem& problem, const DecodeVariant& variant) {
  return static_cast<double>(all_streams(problem, variant)) /
         static_cast<double>(core::hopper_sm_count * variant.resident);
}

/// Whether each stream may have a block of its own where there are more than there is room for. A block alone
/// on its multiprocessor would not hide how others begin. Of other algorithms, and of values that lie in the
/// keys, nothing was measured.
bool may_have_own_blocks(const DecodeProblem& problem, const DecodeVariant& variant) {
  return variant.algorithm == Algorithm::shared_p && !variant.values_in_keys() && !problem.listed.given &&
         variant.resident > 1 && problem.split_size == 0 &&
         streams_of(problem, variant) == problem.kv_heads() &&
         rounds_of_streams(problem, variant) >= (is_short(problem, variant) ? 1 : fewest_own_rounds) &&
         problem.capacity() <= most_known(problem, variant, 1);
}

/// What the step takes then. Thread blocks of a multiprocessor wait for memory together, or each for itself.
/// Head dim 256 keeps its first prices: by those of the others its choices were 3 to 4 % slower.
double own_blocks_us(const DecodeProblem& problem, const DecodeVariant& variant) {
  const Reading reading = reading_of(problem, variant, price_of(variant).block_us);
  const double keys = static_cast<double>(problem.capacity()) / static_cast<double>(variant.block_n),
               bytes = keys * reading.bytes;
  const double rounds = std::ceil(rounds_of_streams(problem, variant));
  const bool is_wide = variant.head_dim > 128, second_is_last = variant.resident == 2 && rounds == 2;
  const double rate = second_is_last && !is_wide ? own_second_rate : own_rate;
  const double memory_us = static_cast<double>(all_streams(problem, variant)) * bytes / rate;
  const double block_us = is_wide ? reading.block_us : std::max(reading.block_us, reading.stream_us);
  const double stream_us = own_stream_us + static_cast<double>(units_of_stream(problem, variant)) * block_us;
  const auto cube = [](double x) { return x * x * x; };
  return own_launch_us + std::cbrt(cube(memory_us) + cube(rounds * stream_us));
}

/// What a step takes less, where blocks know their streams.
double known_us(const DecodeProblem& problem, const DecodeVariant& variant, std::int64_t parts) {
  if (!is_short(problem, variant)) return known_stream_us + (parts == 1 ? known_keys_us : 0);
  const Known& known = variant.query_rows > narrowest_rows
                           ? known_wider_streams
                           : known_short_streams.at(static_cast<std::size_t>(variant.resident - 1));
  if (parts > 1) return known.part_us;
  const bool few = 2 * all_streams(problem, variant) <= core::hopper_sm_count;
  return known.whole_us + (few ? known.few_us : 0);
}

/// How much longer whole streams that blocks know take, by how they fall upon multiprocessors.
double unevenness_of(const DecodeProblem& problem, const DecodeVariant& variant) {
  constexpr std::int64_t chip = core::hopper_sm_count;
  const std::int64_t streams = all_streams(problem, variant);
  if (variant.resident < 3 || streams <= chip || !is_short(problem, variant)) return 1;
  if (100 * streams <= 118 * chip) return thirds_of_few;
  return 2 * streams > 3 * chip && streams <= 2 * chip ? thirds_uneven : 1;
}

/// How much less long parts read where they leave no thread block without one.
double fullness_of(const DecodeVariant& variant, const Cut& cut) {
  if (10 * cut.blocks < 9 * core::hopper_sm_count * variant.resident) return 1;
  if (variant.head_dim == 64 && variant.resident > 2) return full_parts_64;
  return variant.head_dim == 128 && variant.resident > 1 ? full_parts_128 : 1;
}

}  // namespace

bool is_short(const DecodeProblem& problem, const DecodeVariant& variant) {
  return has_narrow_streams(problem, variant) && problem.capacity() <= most_known(problem, variant, 1);
}

bool has_short_parts(const DecodeProblem& problem, const DecodeVariant& variant) {
  if (!has_narrow_streams(problem, variant) || variant.query_rows > narrowest_rows) return false;
  const std::int64_t parts = core::hopper_sm_count * variant.resident / all_streams(problem, variant);
  if (parts < 2) return false;
  const std::int64_t longest = core::ceil_div(units_of_stream(problem, variant), parts);
  return longest * variant.block_n <= most_known(problem, variant, parts);
}

std::int64_t known_parts(const DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
                         const EvenShare& share) {
  if (problem.split_size > 0 || problem.listed.given || grid.blocks() == 0) return 0;
  if (share.of_own_blocks) return 1;
  const Cut cut = cut_of(problem, variant, grid.usual, share);
  const bool alone = streams_in_turn(problem, variant, grid.usual) == 1;
  const std::int64_t parts = cut.whole ? 1 : alone ? cut.blocks / grid.usual.team_blocks : cut.in_parts;
  if (parts == 0 || (parts == 1 && cut.share != cut.units) || (parts > 1 && variant.merges_apart())) return 0;
  if (cut.share * variant.block_n > most_known(problem, variant, parts)) return 0;
  return all_streams(problem, variant) * parts <= grid.blocks() ? parts : 0;
}

double step_us(const DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
               const EvenShare& share) {
  if (grid.blocks() == 0) return 0;
  if (share.of_own_blocks) return own_blocks_us(problem, variant);
  const Cut cut = cut_of(problem, variant, grid.usual, share);
  const TilePrice price = price_of(variant);
  const Reading reading = reading_of(problem, variant, price.block_us);
  const std::int64_t parts = known_parts(problem, variant, grid, share);
  const double us = launch_us + (variant.resident > 2 ? thirds_us : 0) +
                    price.stream_us * cut.streams_begun() +
                    share_us(cut, reading, variant.resident) * (parts > 1 ? fullness_of(variant, cut) : 1);
  if (parts == 0) {
    const std::int64_t lengths = std::max<std::int64_t>(0, problem.batch() - usual_lengths);
    return us + merging_us(variant, cut) + length_us * static_cast<double>(lengths);
  }
  const double less_us = known_us(problem, variant, parts);
  if (parts > 1) return us + merging_us(variant, cut) - less_us;
  return (us - less_us) * unevenness_of(problem, variant);
}

CostBeside cost_beside(const DecodeProblem& problem, const DecodeVariant& variant) {
  const TilePrice price = price_of(variant.narrowed(variant.narrowest_rows(problem.group())));  // one query
  const Reading reading = reading_of(problem, variant, price.block_us);
  const auto side_by_side = static_cast<double>(variant.resident);
  const double streams = static_cast<double>(streams_of(problem, variant)) / side_by_side;
  const double together_us = block_us_of(reading, core::hopper_sm_count, variant.resident, sm_rate);
  const double few_us = block_us_of(reading, 1, 1, sm_rate);
  return {streams * (price.stream_us + listed_stream_us), streams * together_us / variant.block_n,
          together_us / side_by_side / few_us};
}

EvenShare best_share(const DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
                     std::int64_t usual) {
  constexpr std::int64_t most_keys = 1536;  // of a stream, so that some are not cut
  EvenShare best{usual};
  const std::int64_t units = units_of_stream(problem, variant);
  if (grid.blocks() == 0) return best;
  const std::int64_t in_turn = streams_in_turn(problem, variant, grid.usual);
  double least = step_us(problem, variant, grid, best);
  const auto consider = [&](const EvenShare& share) {
    const bool is_usual = share.units == usual && !share.ends_with_streams && !share.of_own_blocks;
    if (share.units < usual || is_usual) return;
    const double us = step_us(problem, variant, grid, share);
    if (us < least) best = share, least = us;
  };
  if (problem.capacity() <= most_keys) {
    for (const std::int64_t share : {core::ceil_div(in_turn, grid.usual.teams) * units, units,
                                     core::ceil_div(units, 2), core::ceil_div(units, 4)})
      consider({share});
  } else if (problem.capacity() <= most_known(problem, variant, 1)) {
    consider({units});
  }
  const std::int64_t parts = std::min(units, grid.usual.teams / in_turn);
  if (parts > 1) consider({core::ceil_div(units, parts), true});
  if (may_have_own_blocks(problem, variant)) consider({units, false, true});
  return best;
}

}  // namespace tandem::decode
