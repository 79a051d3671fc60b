// Decode's cost model: how its prices move with the step, and that it chooses what measured best.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "decode/cost.h"
#include "decode/plan.h"
#include "tests/sim/decode_plan_cases.h"

namespace tandem::test {
namespace {

using core::DecodeProblem;
using decode::DecodeVariant;

constexpr int multiprocessors = 132;

double us(const DecodeProblem& p, const DecodeVariant& v, std::int64_t share) {
  return decode::step_us(p, v, decode::grid_shape(p, v, multiprocessors), {share});
}

/// The kernels that the model may choose for head dim 128 in bf16.
std::vector<DecodeVariant> kernels_of_128() {
  std::vector<DecodeVariant> found;
  for (const DecodeVariant& v : decode::all_variants())
    if ((v.algorithm == decode::Algorithm::shared_p || v.paired()) && v.head_dim == 128 &&
        v.operand == hw::Operand::bf16)
      found.push_back(v);
  return found;
}

TEST(DecodeCost, ALongerStreamInWholeSharesCostsMoreByItsBlocksAlone) {
  int slowed = 0;
  for (const DecodeVariant& v : kernels_of_128()) {
    const auto whole_us = [&v](std::int64_t units) {
      return us(problem_of({.batch = multiprocessors / 2, .capacity = units * v.block_n}), v, units);
    };
    // The first two are fetched ahead, and after four memory's queues are full; one alone is never cut.
    const double third = whole_us(3) - whole_us(2), seventh = whole_us(7) - whole_us(6);
    EXPECT_GT(third, 0);
    EXPECT_NEAR(whole_us(4) - whole_us(3), third, 1e-9);
    EXPECT_GE(seventh, third - 1e-9);
    slowed += seventh > 1.1 * third ? 1 : 0;
    EXPECT_LE(seventh, 1.4 * third);
    EXPECT_NEAR(whole_us(40) - whole_us(39), seventh, 0.05 * seventh);
    EXPECT_GT(whole_us(2), whole_us(1));
  }
  EXPECT_GT(slowed, 2) << "kernels that read as fast as they can";
}

TEST(DecodeCost, PairsOfBlocksReadSlowerThanBlocksAloneOnceQueuesAreFull) {
  const auto of_eight_rows = [](int block_n, int resident, std::int64_t keys) {
    for (const DecodeVariant& v : kernels_of_128())
      if (v.query_rows == 8 && v.block_n == block_n && v.resident == resident)
        return us(problem_of({.batch = 4 * multiprocessors, .capacity = keys}), v, keys / block_n);
    ADD_FAILURE() << "no such kernel";
    return 0.;
  };
  const double pairs = of_eight_rows(64, 2, 8192), alone = of_eight_rows(128, 1, 8192);
  EXPECT_GT(pairs, 1.08 * alone);
  EXPECT_LT(pairs, 1.12 * alone) << "memory has nine tenths of its rate";
  EXPECT_LT(of_eight_rows(64, 2, 256), of_eight_rows(128, 1, 256)) << "they hide each other's waits";
}

TEST(DecodeCost, MoreThanARoundOfStreamsCostsAnotherRound) {
  for (const DecodeVariant& v : kernels_of_128()) {
    const auto of_batch = [&v](std::int64_t batch) {
      return us(problem_of({.batch = batch, .capacity = 4 * v.block_n}), v,
                batch > multiprocessors * v.resident ? 8 : 4);
    };
    const std::int64_t round = std::int64_t{multiprocessors} * v.resident;
    EXPECT_GT(of_batch(2 * round), 1.4 * of_batch(round));
    EXPECT_LE(of_batch(round / 2), of_batch(round));
  }
}

/// 66 streams of four blocks, and 33 of eight that are cut in halves: shares are the same.
double whole_streams_us(const DecodeVariant& v) {
  return us(problem_of({.batch = 66, .group = v.query_rows, .capacity = 4 * v.block_n}), v, 4);
}
double halves_us(const DecodeVariant& v) {
  return us(problem_of({.batch = 33, .group = v.query_rows, .capacity = 8 * v.block_n}), v, 4);
}

TEST(DecodeCost, CutStreamsCostMoreThanWholeOnesOfTheSameShare) {
  for (const DecodeVariant& v : kernels_of_128()) {
    const DecodeProblem uneven = problem_of({.batch = 44, .group = v.query_rows, .capacity = 6 * v.block_n});
    EXPECT_LT(whole_streams_us(v), halves_us(v));
    EXPECT_LT(whole_streams_us(v), us(uneven, v, 4));
    // Partial results and merges grow with rows.
    const double merging = halves_us(v) - whole_streams_us(v);
    EXPECT_GT(merging, v.query_rows <= 16 ? 1 : 2);
    EXPECT_LT(merging, v.query_rows <= 16 ? 8 : 16);
  }
}

TEST(DecodeCost, AWidePartialResultCostsByItsNumbers) {
  // One kernel's tile has twice the rows of the other's, and nothing else of the cut differs.
  double of_64 = 0, of_128 = 0;
  for (const DecodeVariant& v : kernels_of_128()) {
    if (!v.paired() || v.lists_queries()) continue;
    (v.query_rows == 64 ? of_64 : of_128) = halves_us(v) - whole_streams_us(v);
  }
  EXPECT_NEAR(of_128 - of_64, 64 * 128 / 1024 * 0.3, 0.01);
}

TEST(DecodeCost, NothingCostsNothing) {
  DecodeProblem p = problem_of({.batch = 0});
  for (const DecodeVariant& v : kernels_of_128()) EXPECT_EQ(us(p, v, 1), 0);
}

// bench/results/h200/2026-11-28/few-ways-2.txt: 4.0 TB/s of head dims 96 and 80, 4.4 to 4.6 of 128 and 192.
TEST(DecodeCost, PaddedRowsThatAreNoWholeLinesCostMoreThanTheirBytes) {
  for (const DecodeVariant& v : kernels_of_128()) {
    const double full = us(problem_of({.batch = 132, .kv_heads = 8, .capacity = 1 << 16}), v, 1);
    const double padded =
        us(problem_of({.batch = 132, .kv_heads = 8, .head_dim = 96, .capacity = 1 << 16}), v, 1);
    EXPECT_GE(padded / full, 0.75 * 1.1 - 0.02) << "three quarters of the bytes";
    // Of more rows products may take longer than keys.
    EXPECT_LE(padded / full, v.query_rows <= 16 ? 0.75 * 1.1 + 0.02 : 1);
  }
}

TEST(DecodeCost, RowsThatAreNoWholeSectorsComeSlowly) {
  for (const DecodeVariant& v : decode::all_variants()) {
    if (v.algorithm != decode::Algorithm::shared_p || v.head_dim != 64 || v.lists_queries()) continue;
    const auto long_us = [&v](std::int64_t head_dim) {
      return us(problem_of({.batch = 64, .kv_heads = 8, .head_dim = head_dim, .capacity = 1 << 15}), v, 1);
    };
    const double of_whole_sectors = long_us(48) / 96;  // of a row's byte
    EXPECT_GT(long_us(40) / 80, 1.15 * of_whole_sectors);
    EXPECT_GT(long_us(56) / 112, 1.15 * of_whole_sectors);
  }
}

/// A step, and what its kernels took on an H200 by the best share: {query rows, resident, us}.
struct Measured {
  Shape shape;
  struct Time {
    int query_rows, resident;
    double us;
  };
  std::vector<Time> times;
};

// bench/drawn.py's shapes with every kernel; docs/decode.md.
const std::vector<Measured>& measured_steps() {
  static const std::vector<Measured> steps = {
      {{.batch = 55, .group = 5, .kv_heads = 8, .head_dim = 64, .capacity = 102},
       {{8, 1, 12.4}, {8, 2, 9.2}}},
      {{.batch = 47, .group = 4, .kv_heads = 12, .head_dim = 64, .capacity = 96},
       {{8, 1, 14.6}, {8, 2, 11.3}}},
      {{.batch = 5, .group = 16, .kv_heads = 8, .head_dim = 64, .capacity = 628},
       {{8, 1, 7.5}, {8, 2, 8.1}, {16, 1, 8.4}, {16, 2, 8.8}}},
      {{.batch = 35, .group = 12, .kv_heads = 8, .head_dim = 64, .capacity = 26452},
       {{8, 1, 608.0}, {8, 2, 469.3}, {16, 1, 425.6}, {16, 2, 432.1}}},
      {{.batch = 118, .group = 32, .kv_heads = 8, .head_dim = 64, .capacity = 2287},
       {{8, 1, 404.2}, {8, 2, 259.5}, {16, 1, 246.6}, {16, 2, 177.0}, {32, 2, 149.7}}},
      {{.batch = 51, .group = 48, .kv_heads = 8, .head_dim = 64, .capacity = 274},
       {{16, 1, 54.2}, {16, 2, 34.9}, {32, 2, 38.0}}},
      {{.batch = 17, .group = 64, .kv_heads = 1, .head_dim = 64, .capacity = 29567},
       {{16, 1, 99.4}, {16, 2, 68.5}, {32, 2, 53.0}}},
      {{.batch = 15, .group = 6, .kv_heads = 8, .head_dim = 128, .capacity = 390},
       {{8, 1, 12.3}, {8, 2, 11.5}}},
      {{.batch = 9, .group = 1, .kv_heads = 8, .head_dim = 128, .capacity = 1711},
       {{8, 1, 21.9}, {8, 2, 22.9}}},
      {{.batch = 8, .group = 16, .kv_heads = 8, .head_dim = 128, .capacity = 627},
       {{8, 1, 10.1}, {8, 2, 11.9}, {16, 1, 10.7}, {16, 2, 13.5}}},
      {{.batch = 2, .group = 16, .kv_heads = 1, .head_dim = 128, .capacity = 14466},
       {{8, 1, 16.0}, {8, 2, 20.3}, {16, 1, 20.4}, {16, 2, 29.8}}},
      {{.batch = 25, .group = 28, .kv_heads = 4, .head_dim = 128, .capacity = 1111},
       {{16, 1, 28.6}, {16, 2, 23.0}, {32, 2, 31.1}}},
      {{.batch = 82, .group = 28, .kv_heads = 4, .head_dim = 128, .capacity = 9521},
       {{8, 1, 734.5}, {8, 2, 672.8}, {16, 1, 438.9}, {16, 2, 391.9}, {32, 2, 400.4}}},
      {{.batch = 2, .group = 32, .kv_heads = 1, .head_dim = 128, .capacity = 193},
       {{8, 1, 6.2}, {8, 2, 6.8}, {16, 1, 6.7}, {16, 2, 7.4}, {32, 2, 9.1}}},
      {{.batch = 5, .group = 56, .kv_heads = 4, .head_dim = 128, .capacity = 342},
       {{16, 1, 8.2}, {16, 2, 9.9}, {32, 2, 12.9}, {64, 1, 14.0}}},
      {{.batch = 77, .group = 96, .kv_heads = 1, .head_dim = 128, .capacity = 7132},
       {{16, 1, 229.6}, {16, 2, 210.7}, {32, 2, 155.1}, {64, 1, 179.4}}},
      {{.batch = 9, .group = 128, .kv_heads = 8, .head_dim = 128, .capacity = 5611},
       {{16, 1, 215.3}, {16, 2, 191.9}, {32, 2, 139.2}, {64, 1, 127.4}}},
      {{.batch = 5, .group = 256, .kv_heads = 1, .head_dim = 128, .capacity = 33715},
       {{16, 1, 167.7}, {16, 2, 156.2}, {32, 2, 107.9}, {64, 1, 96.9}}},
      {{.batch = 9, .group = 16, .kv_heads = 8, .head_dim = 256, .capacity = 129},
       {{8, 1, 14.9}, {16, 1, 10.6}}},
      {{.batch = 2, .group = 32, .kv_heads = 2, .head_dim = 256, .capacity = 155},
       {{8, 1, 7.4}, {16, 1, 8.0}, {32, 1, 11.1}}},
      {{.batch = 10, .group = 28, .kv_heads = 4, .head_dim = 256, .capacity = 23215},
       {{8, 1, 408.4}, {16, 1, 251.9}, {32, 1, 243.6}}},
      {{.batch = 16, .group = 64, .kv_heads = 2, .head_dim = 256, .capacity = 135},
       {{16, 1, 9.4}, {32, 1, 16.0}}},
      {{.batch = 37, .group = 64, .kv_heads = 4, .head_dim = 256, .capacity = 5447},
       {{16, 1, 419.7}, {32, 1, 288.9}}},
  };
  return steps;
}

/// Of the kernels that were measured, the one that the model has for the cheapest.
const DecodeVariant& cheapest(const Measured& step, const DecodeProblem& p) {
  static constexpr auto table = decode::all_variants();
  const DecodeVariant* found = nullptr;
  for (const DecodeVariant& v : table) {
    const bool measured = std::ranges::any_of(step.times, [&v](const Measured::Time& time) {
      return time.query_rows == v.query_rows && time.resident == v.resident;
    });
    if (measured && v.algorithm == decode::Algorithm::shared_p && v.head_dim == p.head_dim() &&
        v.operand == hw::Operand::bf16 &&
        (found == nullptr || decode::estimated_us(p, v) < decode::estimated_us(p, *found)))
      found = &v;
  }
  return *found;
}

TEST(DecodeCost, TheKernelOfOneWarpgroupThatIsCheapestTookAtMostATenthLongerThanTheBest) {
  for (const Measured& step : measured_steps()) {
    const DecodeProblem p = problem_of(step.shape);
    const DecodeVariant& v = cheapest(step, p);
    double best = step.times.front().us, chosen = 0;
    for (const Measured::Time& time : step.times) {
      best = std::min(best, time.us);
      if (time.query_rows == v.query_rows && time.resident == v.resident) chosen = time.us;
    }
    SCOPED_TRACE(testing::Message() << "head dim " << p.head_dim() << ", batch " << p.batch() << ", "
                                    << p.kv_heads() << " heads of " << step.shape.group << " rows, "
                                    << p.capacity() << " keys: " << v.query_rows << " rows, " << v.resident);
    ASSERT_GT(chosen, 0) << "was not measured";
    EXPECT_LE(chosen, 1.1 * best);
  }
}

/// A step, and what it took with the best other tile and with the one in question.
struct TimedChoice {
  Shape shape;
  double other_us, own_us;
};

template <typename IsInQuestion>
void expect_served_where_faster(const std::vector<TimedChoice>& rows, IsInQuestion is_in_question) {
  for (const TimedChoice& row : rows) {
    const DecodeProblem p = problem_of(row.shape);
    EXPECT_EQ(is_in_question(*decode::choose_variant(p)), row.own_us < row.other_us)
        << p.batch() << " x " << p.kv_heads() << " heads, " << p.capacity() << " keys";
  }
}

// bench/results/h200/2026-11-28/decode-tiles.txt; times of two decimals are of
// h100/2026-11-27/decode-three.csv.
TEST(DecodeCost, ThreeBlocksOfAMultiprocessorServeStepsThatTheyMakeFaster) {
  const std::vector<TimedChoice> rows{
      {{.batch = 102, .kv_heads = 32, .head_dim = 64, .capacity = 204}, 51.6, 46.8},
      {{.batch = 63, .kv_heads = 16, .head_dim = 64, .capacity = 229}, 21.8, 19.1},
      {{.batch = 109, .group = 6, .kv_heads = 8, .head_dim = 64, .capacity = 200}, 20.7, 17.9},
      {{.batch = 112, .kv_heads = 20, .head_dim = 64, .capacity = 70}, 26.6, 20.5},
      {{.batch = 117, .kv_heads = 12, .head_dim = 64, .capacity = 495}, 47.2, 44.4},
      {{.batch = 80, .group = 2, .kv_heads = 8, .head_dim = 64, .capacity = 256}, 16.1, 13.7},
      {{.batch = 35, .group = 16, .kv_heads = 8, .head_dim = 64, .capacity = 130}, 11.2, 8.1},
      {{.batch = 101, .kv_heads = 24, .head_dim = 128, .capacity = 176}, 57.7, 53.5},
      {{.batch = 42, .group = 6, .kv_heads = 8, .head_dim = 64, .capacity = 210}, 11.67, 10.27},
      {{.batch = 46, .group = 4, .kv_heads = 8, .head_dim = 64, .capacity = 432}, 20.46, 17.42},
      {{.batch = 33, .group = 5, .kv_heads = 8, .head_dim = 64, .capacity = 503}, 14.58, 16.50},
      {{.batch = 38, .kv_heads = 8, .head_dim = 128, .capacity = 76}, 10.83, 9.30},
      {{.batch = 67, .group = 7, .kv_heads = 4, .head_dim = 128, .capacity = 88}, 11.01, 8.83},
      {{.batch = 30, .group = 6, .kv_heads = 8, .head_dim = 128, .capacity = 682}, 32.12, 36.85},
      {{.batch = 13, .group = 5, .kv_heads = 8, .head_dim = 256, .capacity = 248}, 12.67, 13.34},
      {{.batch = 40, .group = 4, .kv_heads = 8, .head_dim = 256, .capacity = 57}, 13.10, 10.73},
      {{.batch = 9, .kv_heads = 12, .head_dim = 64, .capacity = 1314}, 12.5, 14.2},
      {{.batch = 15, .group = 4, .kv_heads = 8, .head_dim = 64, .capacity = 1921}, 17.4, 20.5},
      {{.batch = 110, .group = 8, .head_dim = 128, .capacity = 127}, 5.0, 5.4},
      {{.batch = 27, .group = 8, .kv_heads = 4, .head_dim = 128, .capacity = 213}, 6.2, 7.1},
      {{.batch = 63, .group = 8, .kv_heads = 4, .head_dim = 128, .capacity = 512}, 17.6, 23.4},
      {{.batch = 31, .group = 6, .kv_heads = 8, .head_dim = 128, .capacity = 536}, 19.0, 25.1},
      {{.batch = 32, .group = 6, .kv_heads = 8, .head_dim = 256, .capacity = 160}, 13.0, 17.0},
  };
  expect_served_where_faster(rows, [](const DecodeVariant& v) { return v.resident == 3; });
}

// The same rows, and of 14 and 26 sequences decode-tiles-exact-sums.txt and decode-before-after-2.txt.
TEST(DecodeCost, ThreeBlocksServeNoStepsOfOneToTwoStreamsForAMultiprocessor) {
  const std::vector<TimedChoice> rows{
      {{.batch = 26, .group = 2, .kv_heads = 8, .head_dim = 64, .capacity = 2113}, 31.7, 43.7},
      {{.batch = 14, .kv_heads = 16, .head_dim = 64, .capacity = 802}, 15.7, 19.1},
      {{.batch = 8, .q_len = 8, .kv_heads = 16, .head_dim = 64, .capacity = 952}, 10.4, 12.8},
      {{.batch = 63, .group = 8, .kv_heads = 4, .head_dim = 128, .capacity = 512}, 17.6, 23.4},
      {{.batch = 15, .kv_heads = 16, .head_dim = 128, .capacity = 384}, 14.0, 18.4},
      {{.batch = 19, .group = 2, .kv_heads = 8, .head_dim = 64, .capacity = 641}, 12.4, 11.2},
  };
  expect_served_where_faster(rows, [](const DecodeVariant& v) { return v.resident == 3; });
}

// Nobody has timed these tiles there: a ring of one stage, or parts of few streams.
TEST(DecodeCost, TilesForShortStreamsServeNoLongOrFewOnes) {
  for (const std::int64_t keys : {300, 1500, 20'000}) {
    for (const std::int64_t batch : {2, 30, 300}) {
      const DecodeVariant& v = *decode::choose_variant(
          problem_of({.batch = batch, .group = 2, .kv_heads = 8, .head_dim = 256, .capacity = keys}));
      EXPECT_EQ(v.stages == 1, keys < 1024 && batch > 16) << batch << " x " << keys;
    }
  }
  const DecodeProblem few =
      problem_of({.batch = 23, .group = 8, .kv_heads = 4, .head_dim = 256, .capacity = 991});
  EXPECT_EQ(decode::choose_variant(few)->stages, 2);
}

// bench/results/h200/2026-11-23/decode-tiles.csv and 2026-11-26/few-ways*.txt, of the latter without the
// kernel that clears counters; docs/performance/decode.md.
TEST(DecodeCost, TilesOfTwoWarpgroupsCostWithinASixthOfWhatTheyTook) {
  struct Row {
    Shape shape;
    int query_rows;
    double us;
  };
  for (const Row& row : {
           Row{{.batch = 2, .group = 56, .kv_heads = 4, .head_dim = 128, .capacity = 29628}, 64, 45.3},
           Row{{.batch = 15, .group = 56, .kv_heads = 4, .head_dim = 128, .capacity = 16927}, 64, 137.2},
           Row{{.batch = 9, .group = 128, .kv_heads = 8, .head_dim = 128, .capacity = 5611}, 64, 97.3},
           Row{{.batch = 64, .group = 128, .kv_heads = 8, .head_dim = 128, .capacity = 1024}, 64, 137.3},
           Row{{.batch = 3, .q_len = 76, .kv_heads = 20, .head_dim = 128, .capacity = 3979}, 64, 60.8},
           Row{{.batch = 3, .q_len = 80, .kv_heads = 24, .head_dim = 128, .capacity = 6544}, 64, 120.2},
           Row{{.batch = 8, .group = 100, .kv_heads = 8, .head_dim = 96, .capacity = 3117}, 64, 51.3},
           Row{{.batch = 2, .q_len = 175, .kv_heads = 20, .head_dim = 128, .capacity = 13680}, 64, 180.6},
           Row{{.batch = 1, .group = 415, .kv_heads = 8, .head_dim = 128, .capacity = 47169}, 64, 315.7},
           Row{{.batch = 3, .group = 720, .kv_heads = 4, .head_dim = 128, .capacity = 16449}, 64, 286.3},
           Row{{.batch = 9, .group = 128, .kv_heads = 8, .head_dim = 128, .capacity = 5611}, 128, 85.0},
           Row{{.batch = 64, .group = 128, .kv_heads = 8, .head_dim = 128, .capacity = 1024}, 128, 106.0},
           Row{{.batch = 4, .group = 120, .kv_heads = 8, .head_dim = 128, .capacity = 9562}, 128, 58.5},
           Row{{.batch = 6, .q_len = 196, .kv_heads = 24, .head_dim = 128, .capacity = 7581}, 128, 342.6},
           Row{{.batch = 1, .q_len = 492, .kv_heads = 24, .head_dim = 128, .capacity = 11124}, 128, 187.6},
           Row{{.batch = 52, .group = 128, .kv_heads = 1, .head_dim = 64, .capacity = 7411}, 128, 61.0},
           Row{{.batch = 16, .group = 128, .kv_heads = 8, .head_dim = 64, .capacity = 8192}, 128, 114.1},
       }) {
    const DecodeProblem p = problem_of(row.shape);
    const DecodeVariant* of_two = nullptr;
    for (const DecodeVariant& v : decode::all_variants())
      if (v.paired() && v.query_rows == row.query_rows && v.operand == hw::Operand::bf16 &&
          v.head_dim >= p.head_dim() && of_two == nullptr)
        of_two = &v;
    ASSERT_NE(of_two, nullptr);
    EXPECT_NEAR(decode::estimated_us(p, *of_two) / row.us, 1, 1 / 6.)
        << row.query_rows << " rows a tile, " << row.shape.batch << " x " << p.capacity() << " keys";
  }
}

// bench/results/h200/2026-11-23/decode-8bit-latent.csv.
TEST(DecodeCost, LatentStepsCostWithinAFifthOfWhatTheyTook) {
  constexpr std::array heads{16, 32, 64, 128};
  struct Row {
    std::int64_t batch, capacity;
    std::array<double, 4>
        us;  ///< by heads; of 16, only where few streams were cut: they were merged in the kernel
  };
  for (const Row& row : {Row{64, 8192, {151.2, 181.1, 256.9, 460.0}},
                         Row{128, 1024, {40.5, 61.4, 86.5, 149.8}}, Row{8, 32768, {0, 105.8, 137.9, 227.7}},
                         Row{1, 8192, {0, 23.0, 25.7, 28.5}}, Row{1, 131072, {0, 58.5, 73.9, 117.8}}}) {
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const DecodeProblem p = problem_of({.batch = row.batch,
                                          .group = heads[i],
                                          .head_dim = 576,
                                          .capacity = row.capacity,
                                          .value_dim = 512});
      for (const DecodeVariant& v : decode::all_variants()) {
        if (row.us[i] == 0 || !v.values_in_keys() || v.two_part_keys || v.paired() ||
            v.operand != hw::Operand::bf16 || v.query_rows != (heads[i] == 16 ? 16 : 32))
          continue;
        SCOPED_TRACE(testing::Message()
                     << row.batch << " x " << row.capacity << ", " << heads[i] << " heads");
        EXPECT_NEAR(decode::estimated_us(p, v) / row.us[i], 1, 0.2);
      }
    }
  }
}

TEST(DecodeCost, FewLatentRowsOfALongSequenceAreMergedByAKernelOfTheirOwn) {
  for (const std::int64_t heads : {1, 8, 16}) {
    for (const std::int64_t capacity : {8192, 131072}) {
      const DecodeProblem p =
          problem_of({.batch = 1, .group = heads, .head_dim = 576, .capacity = capacity, .value_dim = 512});
      const DecodeVariant& v = *decode::choose_variant(p);
      const auto step = decode::make_record(p, v, multiprocessors, nullptr);
      EXPECT_TRUE(step.arguments.merges_apart) << "47 and 119 us where one block merged";
      EXPECT_GT(decode::make_combine_record(step).blocks, multiprocessors);
      EXPECT_LT(decode::estimated_us(p, v), capacity == 8192 ? 24 : 70);
    }
  }
}

TEST(DecodeCost, BlocksThatCombineFillTheChipAboutOnceHoweverManyStreamsThereAre) {
  constexpr std::int64_t at_once = 4 * multiprocessors;  // by their registers
  for (const DecodeVariant& v : kernels_of_128()) {
    if (!v.merges_apart() || v.lists_queries()) continue;
    for (const std::int64_t batch : {1, 3, 17, 63, 90, 500}) {
      const DecodeProblem p =
          problem_of({.batch = batch, .group = v.query_rows, .capacity = 37 * v.block_n + 1});
      const auto step = decode::make_record(p, v, multiprocessors, nullptr);
      const auto combine = decode::make_combine_record(step);
      ASSERT_GT(combine.blocks, 0);
      SCOPED_TRACE("batch " + std::to_string(batch) + ", rows " + std::to_string(v.query_rows));
      const std::int64_t slices = std::int64_t{1} << combine.arguments.log2_slices;
      const std::int64_t places = combine.blocks / slices, merging = std::min(batch, places);
      const bool twice_is_too_many = combine.blocks > at_once && 2 * merging * slices > at_once;
      EXPECT_TRUE(slices == combine.variant.most_slices() || twice_is_too_many);
      EXPECT_TRUE(slices == 1 || combine.blocks <= 2 * at_once || merging * slices <= at_once);
    }
  }
}

TEST(DecodeCost, MultiprocessorsWithABlockMoreThanTheOthersAreWaitedFor) {
  for (const DecodeVariant& v : kernels_of_128()) {
    if (v.resident == 1) continue;
    const auto whole_us = [&v](std::int64_t streams) {
      return us(problem_of({.batch = streams, .group = v.query_rows, .capacity = 16 * v.block_n}), v, 16);
    };
    const double one_each = whole_us(multiprocessors), two_each = whole_us(2 * multiprocessors);
    const double least = (v.resident == 2 ? 1.1 : 0) * one_each;
    EXPECT_GT(whole_us(multiprocessors + 1), least) << "one multiprocessor has two";
    EXPECT_LE(whole_us(multiprocessors + 1), whole_us(2 * multiprocessors - 1));
    EXPECT_LE(whole_us(2 * multiprocessors - 1), two_each * 1.01);
  }
}

TEST(DecodeCost, StreamsThatMostMultiprocessorsHaveOneOfAndSomeTwoAreCut) {
  const DecodeProblem p = problem_of({.batch = 18, .group = 6, .kv_heads = 8, .capacity = 895});
  const DecodeVariant& v = *decode::choose_variant(p);
  const auto args = decode::make_record(p, v, multiprocessors, nullptr).arguments;
  const core::Shares shares(18 * static_cast<int>(ceil_div(895, v.block_n)), args.teams.count,
                            args.even_share);
  const int blocks = shares.blocks() * args.teams.team_blocks.value();
  EXPECT_FALSE(v.resident < 3 && blocks > multiprocessors && blocks < 3 * multiprocessors / 2)
      << "27.0 us with 144 blocks of 132 multiprocessors; cuDNN takes 19.5";
  constexpr double took_us = 27, known_streams_us = 1.6;  // measured before blocks knew their streams
  for (const DecodeVariant& whole : kernels_of_128()) {
    if (whole.query_rows == 8 && whole.resident == 2) {
      EXPECT_NEAR(us(p, whole, 14), took_us - known_streams_us, 2.7);
    }
  }
}

TEST(DecodeCost, AShareOfWholeStreamsIsTakenWhereStreamsAreFewAndShort) {
  const auto share = [](const Shape& x) {
    const DecodeProblem p = problem_of(x);
    const DecodeVariant& v = *decode::choose_variant(p);
    return std::int64_t{decode::make_record(p, v, multiprocessors, nullptr).arguments.even_share.value()} *
           v.block_n;
  };
  EXPECT_GE(share({.batch = 9, .group = 16, .kv_heads = 8, .head_dim = 256, .capacity = 129}), 129)
      << "10.6 us; cut where shares end it took 22.7";
  EXPECT_GE(share({.batch = 4, .group = 4, .kv_heads = 8, .capacity = 160}), 160) << "6.4 us; cut in two 6.8";
  EXPECT_LT(share({.batch = 9, .kv_heads = 8, .capacity = 1711}), 1711) << "21.9 us; whole 29.2";
  EXPECT_LT(share({.batch = 1, .group = 4, .kv_heads = 8, .capacity = 8192}), 512);
}

// Behind other kernels 1 x 8192 took 18.5 us a step with parts that blocks know, and 17.5 with shares.
TEST(DecodeCost, BlocksKnowPartsOfALoneSequenceThatFitTheirRing) {
  const auto knows = [](const Shape& shape) {
    const DecodeProblem p = problem_of(shape);
    return decode::make_record(p, *decode::choose_variant(p), multiprocessors, nullptr)
        .arguments.known_streams;
  };
  for (const std::int64_t head_dim : {64, 128, 256}) {
    const std::int64_t keys = 16 * (head_dim == 64 ? 384 : head_dim == 128 ? 256 : 128);  // of 16 teams
    EXPECT_TRUE(knows({.batch = 1, .group = 4, .kv_heads = 8, .head_dim = head_dim, .capacity = keys}));
    const std::int64_t longer =
        (head_dim == 64 ? 4 : 2) * keys;  // at d64 two blocks share what one can't hold
    EXPECT_FALSE(knows({.batch = 1, .group = 4, .kv_heads = 8, .head_dim = head_dim, .capacity = longer}));
  }
  EXPECT_TRUE(knows({.batch = 8, .group = 4, .kv_heads = 8, .head_dim = 128, .capacity = 2048}));
}

// Two to a thread block, while others had none: 11.4 us at head dim 256, FlashAttention-2 5.8.
TEST(DecodeCost, StreamsOfOneBlockOfKeysHaveABlockOfTheGridEach) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const auto draw = [&random](std::int64_t most) {
      return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
    };
    const std::int64_t kv_heads = draw(16), batch = draw(multiprocessors / kv_heads);
    const DecodeProblem p = problem_of({.batch = batch,
                                        .group = draw(8),
                                        .kv_heads = kv_heads,
                                        .head_dim = 256 - 8 * (random() % 2 == 0 ? 0 : draw(31)),
                                        .capacity = draw(64)});
    const DecodeVariant& v = *decode::choose_variant(p);
    const auto args = decode::make_record(p, v, multiprocessors, nullptr).arguments;
    for (const core::Divisor& share : {args.min_share, args.even_share}) {
      const core::Shares shares(static_cast<int>(batch) * args.teams.streams_per_block, args.teams.count,
                                share);
      EXPECT_EQ(shares.blocks() * args.teams.team_blocks.value(), batch * kv_heads)
          << "seed " << seed << ": " << batch << " x " << p.capacity() << " keys, " << kv_heads
          << " heads of " << p.head_dim();
    }
  }
  const DecodeProblem slow =
      problem_of({.batch = 3, .q_len = 2, .kv_heads = 32, .head_dim = 256, .capacity = 39});
  EXPECT_LT(decode::estimated_us(slow, *decode::choose_variant(slow)), 6);
}

}  // namespace
}  // namespace tandem::test
