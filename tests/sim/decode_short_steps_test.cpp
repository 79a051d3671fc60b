// Decode's choice for short steps, whose prices were fitted to measurements of their own (decode/cost.h).
#include <gtest/gtest.h>

#include "decode/plan.h"
#include "tests/sim/decode_plan_cases.h"

namespace tandem::test {
namespace {

constexpr int multiprocessors = 132;

/// A step, and what was fastest, mostly by at least 7 %: bench/results/h200/2026-11-29/decode-placement.csv.
/// The last one has prices of before.
struct ShortStep {
  std::int64_t head_dim, batch, kv_heads, group, keys;
  int resident, parts;  ///< blocks of a multiprocessor; parts of a stream
};

TEST(DecodeShortSteps, AreTakenByTheBlocksAndPartsThatMeasuredFastest) {
  for (const ShortStep& step : {ShortStep{64, 3, 16, 1, 744, 1, 1},  // 6.8 us; before 7.7
                                {64, 7, 8, 1, 827, 2, 4},            // 7.4; 8.0
                                {64, 6, 16, 1, 2295, 3, 4},          // 17.0; 18.4
                                {64, 6, 24, 1, 1657, 3, 1},          // 18.3; 21.3
                                {64, 22, 8, 1, 1171, 3, 2},          // 17.4; 19.4
                                {64, 23, 8, 4, 1579, 3, 2},          // 21.8; 24.7
                                {128, 7, 8, 4, 733, 1, 1},           // 9.1; 10.1
                                {128, 17, 4, 4, 448, 2, 1},          // 8.0; 9.2
                                {128, 10, 8, 4, 532, 2, 1},          // 9.9; 11.0
                                {128, 11, 8, 4, 1112, 2, 3},         // 16.1; 18.3
                                {128, 12, 8, 4, 358, 1, 1},          // 8.0; by three blocks 8.5
                                {128, 17, 8, 8, 448, 3, 1},          // 11.2; 14.1
                                {128, 19, 8, 6, 343, 3, 1},          // 11.0; 12.4
                                {128, 20, 8, 1, 645, 3, 2},          // 18.3; 21.0
                                {128, 22, 8, 6, 1153, 3, 2},         // 30.5; 34.5
                                {128, 10, 24, 1, 438, 2, 1},         // 15.9; by three blocks more
                                {128, 3, 8, 6, 1217, 1, 5}}) {       // few streams: 9.0; by two blocks 9.5
    const core::DecodeProblem p = problem_of({.batch = step.batch,
                                              .group = step.group,
                                              .kv_heads = step.kv_heads,
                                              .head_dim = step.head_dim,
                                              .capacity = step.keys});
    const decode::DecodeVariant& v = *decode::choose_variant(p);
    const auto args = decode::make_record(p, v, multiprocessors, nullptr).arguments;
    SCOPED_TRACE(testing::Message() << "d" << step.head_dim << " " << step.batch << " x " << step.kv_heads
                                    << " heads, " << step.keys << " keys");
    EXPECT_EQ(v.resident, step.resident);
    EXPECT_TRUE(args.known_streams);
    EXPECT_EQ(args.known_parts.value(), step.parts);
  }
}

}  // namespace
}  // namespace tandem::test
