// Streams that have a block of their own each, where there are more than there is room for at a time: which
// steps have them, and that they come out right.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "decode/plan.h"
#include "decode/table.h"
#include "tests/sim/decode_plan_cases.h"
#include "tests/sim/decode_runs.h"
#include "tests/sim/runs.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {
namespace {

using decode::DecodeVariant;

/// As dispatch has the step on a whole chip.
struct Dispatched {
  const DecodeVariant& variant;
  launch::Record<decode::Family> record;
  int room;  ///< thread blocks that run at the same time

  static Dispatched of(const core::DecodeProblem& p) {
    const DecodeVariant& variant = *decode::choose_variant(p);
    return {variant, decode::make_record(p, variant, core::hopper_sm_count, nullptr),
            core::hopper_sm_count * variant.resident};
  }
  bool has_own_blocks() const { return record.blocks > room; }
};

TEST(DecodeOwnBlocks, AreOfStepsThatWereMeasuredFasterSo) {
  // bench/results/h100/2026-11-28/decode-own-blocks.csv
  for (const Shape& x :
       {Shape{.batch = 49, .q_len = 2, .group = 5, .kv_heads = 8, .head_dim = 128, .capacity = 200},
        {.batch = 111, .q_len = 4, .group = 8, .kv_heads = 4, .head_dim = 128, .capacity = 490},
        {.batch = 83, .q_len = 4, .group = 8, .kv_heads = 4, .head_dim = 64, .capacity = 260},
        {.batch = 59, .q_len = 1, .group = 4, .kv_heads = 8, .head_dim = 128, .capacity = 172}}) {
    const core::DecodeProblem p = problem_of(x);
    const Dispatched step = Dispatched::of(p);
    EXPECT_EQ(step.record.blocks, x.batch * x.kv_heads) << x.batch << " x " << x.capacity;
    EXPECT_TRUE(step.record.arguments.known_streams);
    EXPECT_EQ(step.record.arguments.known_parts.value(), 1);
  }
}

TEST(DecodeOwnBlocks, AreOfAStepThatHasRoomForAllOfThemAtATime) {
  const Shape x{.batch = 41, .q_len = 2, .group = 5, .kv_heads = 8, .head_dim = 64, .capacity = 192};
  const core::DecodeProblem p = problem_of(x);
  const Dispatched step = Dispatched::of(p);
  EXPECT_FALSE(step.has_own_blocks()) << "three of a multiprocessor";
  EXPECT_GE(step.record.blocks, x.batch * x.kv_heads);
  EXPECT_TRUE(step.record.arguments.known_streams);
  EXPECT_EQ(step.record.arguments.known_parts.value(), 1);
}

TEST(DecodeOwnBlocks, AreNotWhereTheyWereSlower) {
  for (const Shape& x :
       {Shape{.batch = 14, .group = 1, .kv_heads = 24, .head_dim = 64, .capacity = 1069},  // 1.3 rounds
        {.batch = 46, .group = 1, .kv_heads = 8, .head_dim = 64, .capacity = 342},
        {.batch = 16, .group = 1, .kv_heads = 24, .head_dim = 64, .capacity = 212},
        {.batch = 116, .q_len = 2, .group = 1, .kv_heads = 32, .head_dim = 64, .capacity = 84},  // one block
                                                                                                 // of keys
        {.batch = 64, .group = 4, .kv_heads = 8, .head_dim = 64, .capacity = 8192}}) {
    EXPECT_FALSE(Dispatched::of(problem_of(x)).has_own_blocks()) << x.batch << " x " << x.capacity;
  }
}

// The longest sequence keeps a block for as long as it takes, whatever the others' lengths are.
TEST(DecodeOwnBlocks, HaveStreamsOfOneRowTileThatEndSoon) {
  Random random(1);
  const auto draw = [&random](std::uint64_t most) { return static_cast<std::int64_t>(1 + random() % most); };
  int own = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t head_dims[] = {40, 64, 96, 128, 256};
    const Shape x{.batch = draw(128),
                  .q_len = draw(4),
                  .group = draw(8),
                  .kv_heads = draw(16),
                  .head_dim = head_dims[random() % 5],
                  .capacity = std::int64_t{16} << random() % 9};
    core::DecodeProblem p = problem_of(x);
    const Dispatched step = Dispatched::of(p);
    if (!step.has_own_blocks()) continue;
    ++own;
    EXPECT_EQ(step.record.blocks, x.batch * x.kv_heads);
    EXPECT_GE(step.variant.query_rows, x.q_len * x.group);
    EXPECT_LE(x.capacity, std::max<std::int64_t>(1024, 640 * 1024 / (4 * step.variant.head_dim)));
    p.split_size = 64;
    EXPECT_FALSE(Dispatched::of(p).has_own_blocks()) << "a sequence's bits would depend on the batch";
  }
  EXPECT_GT(own, 100);
}

/// 480 streams of any length, over pages, with a token to append.
DecodeCase case_for(std::int64_t head_dim, std::int64_t group, std::int64_t capacity) {
  DecodeCase c;
  c.head_dim = head_dim, c.kv_heads = 8, c.q_heads = 8 * group;
  c.new_len = 1, c.capacity = capacity, c.page_size = 64;
  const auto longest = static_cast<std::int32_t>(capacity) - 2;
  for (std::int32_t b = 0; b < 60; ++b)
    c.lengths.push_back(b % 20 == 7 ? longest : 13 * b % std::min(80, longest));
  c.lengths[3] = 0;
  return c;
}

TEST(DecodeOwnBlocks, EqualTheOracleWhereFewRunAtATime) {
  Workspace workspace;
  struct Step {
    std::int64_t head_dim, group, capacity;
  };
  for (const Step& own : {Step{64, 4, 192}, {128, 16, 192}, {64, 8, 64}, {128, 12, 64}}) {
    const DecodeCase c = case_for(own.head_dim, own.group, own.capacity);
    SCOPED_TRACE(testing::PrintToString(c));
    const DecodeTensors before(c);
    const Dispatched step = Dispatched::of(before.problem());
    ASSERT_TRUE(step.has_own_blocks());
    sim::Machine machine;
    machine.multiprocessors = 5, machine.policy = hw::sim::Policy::random;
    expect_correct(run(step.variant, c, workspace, machine), before);
  }
}

}  // namespace
}  // namespace tandem::test
