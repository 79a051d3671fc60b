// Plans of the forward on Hopper: layers that share one, in graphs too, against the oracle of each sequence.
#include <gtest/gtest.h>
#include <vector>

#include "tests/gpu/device_varlen.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {
namespace {

/// The same lengths and entries with other numbers.
VarlenCase next_layer(VarlenCase c) {
  if (!c.batch_index) ++c.seed;  // by which entries are drawn
  return c;
}

/// Two layers that share a plan, several times: what a call leaves in it is for the next one.
void expect_layers_to_share_a_plan(const VarlenCase& c, const Bounds& bounds = {}) {
  VarlenTensors one(c), two(next_layer(c));
  DeviceVarlen first(one, bounds), second(two, bounds);
  const DeviceMemory plan = first.memory_of_plan();
  first.make_plan(plan);
  first.use_plan(plan), second.use_plan(plan);
  for (int repeat = 0; repeat < 3; ++repeat) first.run(), second.run();
  first.read(one), second.read(two);
  EXPECT_EQ(failure_of(one), "");
  EXPECT_EQ(failure_of(two), "");
}

TEST_F(HopperVarlen, LayersShareAPlan) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 12 && !HasFailure(); ++seed) {
    const VarlenCase c = random_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    expect_layers_to_share_a_plan(c);
  }
}

// Lists of sequences of few queries, counters of their parts, and both beside tiles.
TEST_F(HopperVarlen, LayersShareThePlanOfFewQueries) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::vector<std::int64_t>& prompts : {std::vector<std::int64_t>{}, {300, 9}}) {
      VarlenCase c = steps_of(head_dim, 8, prompts);
      SCOPED_TRACE(testing::Message() << c);
      expect_layers_to_share_a_plan(c, {.queries = prompts.empty() ? 8 : 0});
      c.new_lens.clear(), c.rotary_dim = 0;  // alone, a step: its plan has counters only
      expect_layers_to_share_a_plan(c, {.queries = prompts.empty() ? 8 : 0});
    }
  }
}

// Captured with short sequences, replayed with long ones.
TEST_F(HopperVarlen, AGraphMakesThePlanOfItsLayersAnewAtEveryReplay) {
  VarlenCase c;
  c.keys = KeyLayout::entries;
  c.q_lens = {1, 300, 0, 40, 1}, c.k_lens = {500, 300, 20, 900, 3000};
  c.mask = core::Mask::causal();
  VarlenTensors one(c), two(next_layer(c)), short_ones(c);
  short_ones.cu_seqlens_q = {0, 1, 2, 3, 4, 5};
  short_ones.seqused_k = {1, 2, 3, 4, 5};
  DeviceVarlen first(one), second(two);
  const DeviceMemory plan = first.memory_of_plan();
  first.write_lengths(short_ones);
  const Stream stream;
  const Graph graph(stream, [&](cudaStream_t s) {
    first.make_plan(plan, s);
    first.use_plan(plan), second.use_plan(plan);
    first.run(s), second.run(s);
  });
  graph.replay();
  first.write_lengths(one);
  graph.replay();
  first.read(one), second.read(two);
  EXPECT_EQ(failure_of(one), "");
  EXPECT_EQ(failure_of(two), "");
}

}  // namespace
}  // namespace tandem::test
