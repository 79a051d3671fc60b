// Decode's choice for short steps, whose prices were fitted to measurements of their own (decode/cost.h).
#include <gtest/gtest.h>

#include "decode/plan.h"
#include "tests/sim/decode_plan_cases.h"

namespace tandem::test {
namespace {

constexpr int multiprocessors = 132;

/// A step, and what was fastest, mostly by at least 7 %: bench/results/h200/2026-11-29/decode-placement.csv;
/// of 9 and 16 rows decode-own-blocks.csv. Some have prices of before.
struct ShortStep {
  std::int64_t head_dim, batch, kv_heads, group, keys;
  int resident, parts;  ///< blocks of a multiprocessor; parts of a stream
};

/// Expects them of dispatch, and returns how many thread blocks the step has.
int expect_taken(const ShortStep& step) {
  SCOPED_TRACE(testing::Message() << "d" << step.head_dim << " " << step.batch << " x " << step.kv_heads
                                  << " heads, " << step.keys << " keys");
  const core::DecodeProblem p = problem_of({.batch = step.batch,
                                            .group = step.group,
                                            .kv_heads = step.kv_heads,
                                            .head_dim = step.head_dim,
                                            .capacity = step.keys});
  const decode::DecodeVariant& v = *decode::choose_variant(p);
  const auto record = decode::make_record(p, v, multiprocessors, nullptr);
  EXPECT_EQ(v.resident, step.resident);
  EXPECT_TRUE(record.arguments.known_streams);
  EXPECT_EQ(record.arguments.known_parts.value(), step.parts);
  return record.blocks;
}

TEST(DecodeShortSteps, AreTakenByTheBlocksAndPartsThatMeasuredFastest) {
  for (const ShortStep& step : {ShortStep{64, 3, 16, 1, 744, 1, 1},  // 6.8 us; before 7.7
                                {64, 7, 8, 1, 827, 2, 4},            // 7.4; 8.0
                                {64, 6, 16, 1, 2295, 3, 4},          // 17.0; 18.4
                                {64, 6, 24, 1, 1657, 3, 1},          // 18.3; 21.3
                                {64, 22, 8, 1, 1171, 3, 2},          // 17.4; 19.4
                                {64, 23, 8, 4, 1579, 3, 2},          // 21.8; 24.7
                                {128, 7, 8, 4, 733, 1, 1},           // 9.1; 10.1
                                {128, 17, 4, 4, 448, 2, 1},          // 8.0; 9.2
                                {128, 10, 8, 4, 532, 2, 3},          // 9.8; whole 9.9
                                {128, 17, 16, 1, 277, 3, 1},         // 15.1; 16.1
                                {128, 90, 4, 2, 672, 3, 1},          // 32.6; 35.7
                                {128, 11, 8, 4, 1112, 2, 3},         // 16.1; 18.3
                                {128, 12, 8, 4, 358, 1, 1},          // 8.0; by three blocks 8.5
                                {128, 17, 8, 8, 448, 3, 1},          // 11.2; 14.1
                                {128, 19, 8, 6, 343, 3, 1},          // 11.0; 12.4
                                {128, 20, 8, 1, 645, 3, 2},          // 18.3; 21.0
                                {128, 22, 8, 6, 1153, 3, 2},         // 30.5; 34.5
                                {128, 10, 24, 1, 438, 2, 1},         // 15.9; by three blocks more
                                {64, 148, 1, 16, 221, 2, 1},         // 6.3; by three blocks 6.9
                                {64, 34, 4, 9, 855, 3, 1},           // 12.3; by two blocks 14.6
                                {64, 9, 16, 16, 1327, 3, 1},         // 17.3; 21.1
                                {64, 35, 4, 9, 1628, 3, 1},          // 19.7; by one block 22.4
                                {128, 3, 8, 6, 1217, 1, 5}}) {       // few streams: 9.0; by two blocks 9.5
    expect_taken(step);
  }
}

/// Few are left without one then: bench/results/h200/2026-11-29/decode-parts.csv and decode-own-blocks.csv.
TEST(DecodeShortSteps, PartsThatFillTheChipAreTakenBySeveralBlocksOfAMultiprocessor) {
  for (const ShortStep& step : {ShortStep{64, 16, 12, 1, 1881, 3, 2},  // 26.4 us; before 29.7
                                {64, 24, 8, 2, 928, 3, 2},             // 15.6; 16.5
                                {64, 9, 8, 5, 3862, 3, 5},             // 21.5; 23.9
                                {128, 10, 8, 1, 629, 2, 3},            // 10.6; 11.5
                                {128, 8, 4, 7, 4110, 2, 8},            // 20.8; 21.3
                                {128, 3, 8, 2, 5831, 2, 11},           // 21.0; 23.1
                                {128, 4, 24, 1, 1000, 3, 4},           // 15.6; 16.8
                                {128, 6, 32, 1, 963, 3, 2},            // 26.4; 30.7
                                {128, 4, 24, 1, 1347, 3, 4},           // 19.8; 22.6
                                {128, 3, 8, 8, 1214, 1, 5},            // short parts: 8.9; by two blocks 9.6
                                {128, 3, 8, 6, 1870, 1, 5}}) {         // 10.8; 11.2
    expect_taken(step);
  }
}

/// 104 streams: 63.9 us; by two blocks, of which 56 of 264 have no part, 73.5.
TEST(DecodeShortSteps, PartsThatLeaveBlocksWithoutOneAreNotTaken) {
  const core::DecodeProblem p =
      problem_of({.batch = 26, .group = 7, .kv_heads = 4, .head_dim = 128, .capacity = 4961});
  EXPECT_EQ(decode::choose_variant(p)->resident, 1);
}

/// More of them than there is room for, of a block of keys each. Blocks that share them add up all lengths
/// first: bench/results/h200/2026-11-29/decode-own-blocks.csv.
TEST(DecodeShortSteps, StreamsOfOneBlockOfKeysHaveThreadBlocksOfTheirOwn) {
  for (const ShortStep& step : {ShortStep{64, 718, 1, 8, 32, 3, 1},  // 7.5 us; shared out 17.9
                                {64, 1123, 1, 8, 74, 3, 1},          // 12.6; 26.5
                                {64, 1191, 1, 1, 127, 3, 1},         // 14.8; 29.8
                                {64, 454, 1, 8, 64, 3, 1},           // 7.0; 13.3
                                {64, 682, 1, 9, 81, 3, 1},           // 10.4; 20.3
                                {64, 467, 2, 9, 117, 3, 1},          // 14.6; 21.8
                                {128, 487, 1, 12, 59, 3, 1},         // by two 11.0; 16.9
                                {128, 1072, 1, 16, 27, 3, 1},        // by two 21.4; 32.9
                                {128, 61, 8, 16, 126, 3, 1},         // two blocks of keys: by two 13.6; 16.7
                                {128, 405, 1, 2, 112, 3, 1}}) {      // 10.5; 15.8
    EXPECT_EQ(expect_taken(step), step.batch * step.kv_heads);
  }
}

}  // namespace
}  // namespace tandem::test
