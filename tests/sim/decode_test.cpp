// Every decode variant on the software Hopper: random steps, all policies, against the oracle.
//
// TANDEM_SIM_RUNS sets how many steps each test draws; TANDEM_SIM_SEED replays a single one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "core/dtype.h"
#include "core/integers.h"
#include "decode/plan.h"
#include "decode/table.h"
#include "tests/sim/decode_draws.h"
#include "tests/sim/decode_runs.h"
#include "tests/sim/far_tensor.h"
#include "tests/sim/workspace.h"
#include "tests/support/decode_case.h"

namespace tandem {
namespace {

using decode::Algorithm;
using decode::DecodeVariant;
using hw::sim::Policy;
using test::DecodeCase;
using test::DecodeTensors;
using test::expect_correct;
using test::run;
using test::same_bytes;
using test::Workspace;

/// Of what a test with a shape of its own leaves to chance.
std::uint64_t seed_for(const DecodeVariant& variant, std::uint64_t number) {
  return test::seed_of(sim::name_of(variant), number);
}

/// Of two setups, the one that this variant's tests take: between them, variants take both.
bool takes_second(const DecodeVariant& variant) { return (seed_for(variant, 0) >> 16) % 2 == 1; }

/// One sequence of a step, as a step of its own over the same memory.
core::DecodeProblem alone(core::DecodeProblem p, std::int64_t b) {
  for (core::Tensor* t : {&p.q, &p.qv, &p.o, &p.lse, &p.k_new, &p.v_new}) {
    if (t->data != nullptr)
      t->data = static_cast<std::byte*>(t->data) +
                static_cast<std::size_t>(b * t->stride[0]) * core::size_of(t->dtype);
    t->shape[0] = 1;
  }
  p.lengths += b;
  for (core::Tensor* scales : {&p.scales.k, &p.scales.v}) {
    if (p.scales.per_token || scales->data == nullptr) continue;
    scales->data = core::CacheScales::at(*scales, b, 0, 0);
    scales->shape[0] = 1;
  }
  if (p.batch_index != nullptr) {
    p.batch_index += b;
  } else if (p.page_table != nullptr) {
    p.page_table += b * p.page_table_stride;
  } else {
    for (core::Tensor* t : {&p.k_cache, &p.v_cache}) {
      t->data = static_cast<std::byte*>(t->data) +
                static_cast<std::size_t>(b * t->stride[0]) * core::size_of(t->dtype);
      t->shape[0] = 1;
    }
  }
  return p;
}

class DecodeOnSim : public testing::TestWithParam<DecodeVariant> {
 protected:
  Workspace workspace_;
};
/// What operand types are all alike in.
class DecodeValuesOnSim : public DecodeOnSim {};
/// What caches' elements and their scales are all alike in, too.
class DecodeSharesOnSim : public DecodeOnSim {};
class DecodeFixedSplitsOnSim : public DecodeOnSim {};

std::vector<DecodeVariant> variants_of_one_operand() {
  std::vector<DecodeVariant> variants = sim::decode_variants();
  std::erase_if(variants, [](const DecodeVariant& v) { return v.operand != hw::Operand::bf16; });
  return variants;
}
std::vector<DecodeVariant> variants_of_one_element() {
  std::vector<DecodeVariant> variants = variants_of_one_operand();
  std::erase_if(variants, [](const DecodeVariant& v) {
    return v.eight_bit() && (v.element != decode::Element::e4m3 || v.token_scales || v.hadamard);
  });
  return variants;
}
std::vector<DecodeVariant> variants_with_fixed_splits() {
  std::vector<DecodeVariant> variants = variants_of_one_element();
  std::erase_if(variants, [](const DecodeVariant& v) { return !v.has_fixed_splits(); });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Variants, DecodeOnSim, testing::ValuesIn(sim::decode_variants()),
                         test::test_name<DecodeVariant>);
INSTANTIATE_TEST_SUITE_P(Variants, DecodeValuesOnSim, testing::ValuesIn(variants_of_one_operand()),
                         test::test_name<DecodeVariant>);
INSTANTIATE_TEST_SUITE_P(Variants, DecodeSharesOnSim, testing::ValuesIn(variants_of_one_element()),
                         test::test_name<DecodeVariant>);
INSTANTIATE_TEST_SUITE_P(Variants, DecodeFixedSplitsOnSim, testing::ValuesIn(variants_with_fixed_splits()),
                         test::test_name<DecodeVariant>);

/// A step, checked against the oracle.
struct Step {
  const DecodeVariant& variant;
  DecodeCase c;
  Workspace& workspace;
  int multiprocessors = 0;  ///< 0: the run's
  DecodeTensors before{c};

  void check(sim::Machine machine) const {
    if (multiprocessors > 0) machine.multiprocessors = multiprocessors;
    expect_correct(run(variant, c, workspace, machine), before);
  }
  friend std::ostream& operator<<(std::ostream& out, const Step& step) { return out << step.c; }
};

TEST_P(DecodeOnSim, EqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_decode_test --gtest_filter=Variants/DecodeOnSim", 4, [this](std::uint64_t seed) {
    return Step{GetParam(), test::draw_case(GetParam(), seed), workspace_, test::multiprocessors_of(seed)};
  });
}

TEST_P(DecodeSharesOnSim, APlanIsWhatEveryBlockFindsForItself) {
  DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 1));
  if (takes_second(GetParam())) {  // of three windows, with a sequence of several units
    c.lengths.assign(70, 3), c.lengths[40] = 300, c.capacity = 512;
    c.kv_heads = c.q_heads = 1;
  }
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 3;
  const DecodeTensors before(c), without = run(GetParam(), c, workspace_, machine);
  std::vector<std::int32_t> plan = plan_of(GetParam(), before, workspace_, machine);
  const DecodeTensors with = run(GetParam(), c, workspace_, machine, plan);
  expect_correct(with, before);
  EXPECT_TRUE(same_bytes(with.o, without.o));
  EXPECT_TRUE(same_bytes(with.lse, without.lse));
}

/// A step over one key/value head: what a block visits is what a sequence costs.
DecodeCase step_of(const DecodeVariant& variant, std::vector<std::int32_t> lengths) {
  DecodeCase c = test::draw_case(variant, seed_for(variant, 5));
  c.lengths = std::move(lengths), c.new_len = 0, c.capacity = 1024, c.page_size = 0, c.split_size = 0;
  c.batch_index = false, c.mask = core::Mask::full();
  c.q_len = c.kv_heads = c.q_heads = 1;
  return c;
}

TEST_P(DecodeSharesOnSim, AStreamsOverheadIsDealtOutWhereLengthsDiffer) {
  const int block = GetParam().block_n, overhead = GetParam().stream_overhead();
  const DecodeTensors ragged(step_of(GetParam(), {4 * block, 1, 0, block}));
  sim::Machine machine;
  machine.multiprocessors = 2;
  const std::vector<std::int32_t> plan = plan_of(GetParam(), ragged, workspace_, machine);
  EXPECT_EQ(plan[0], 7 + 3 * overhead);
  EXPECT_EQ(plan[1], 4 * overhead);
  EXPECT_EQ(plan[2], 0);  // the first block's first sequence, and its first position
  EXPECT_EQ(plan[3], 0);
  std::vector<std::int32_t> alike(7, 4 * block);  // more streams than blocks: none is cut in equal parts
  alike[1] = 4 * block - 1;
  const DecodeTensors even(step_of(GetParam(), alike));
  const std::vector<std::int32_t> plain = plan_of(GetParam(), even, workspace_, machine);
  EXPECT_EQ(plain[0], 28);
  EXPECT_EQ(plain[1], 2);  // all are alike
}

TEST_P(DecodeFixedSplitsOnSim, HaveNoOverhead) {
  const int block = GetParam().block_n;
  DecodeCase c = step_of(GetParam(), {4 * block, 1, 0, block});
  sim::Machine machine;
  c.split_size = block, machine.multiprocessors = 2;
  EXPECT_EQ(plan_of(GetParam(), DecodeTensors(c), workspace_, machine)[1], 0);
}

/// More sequences than a warp has lanes are counted first.
TEST_P(DecodeSharesOnSim, AStreamsOverheadIsDealtOutAmongMoreSequencesThanLanes) {
  const int block = GetParam().block_n, overhead = GetParam().stream_overhead();
  std::vector<std::int32_t> lengths(33, 1);
  sim::Machine machine;
  machine.multiprocessors = 2;
  for (const bool differ : {false, true}) {
    if (differ) lengths[7] = 2 * block;
    DecodeCase c = step_of(GetParam(), lengths);
    c.capacity = 2 * block;
    const std::vector<std::int32_t> plan = plan_of(GetParam(), DecodeTensors(c), workspace_, machine);
    EXPECT_EQ(plan[0], differ ? 34 + 32 * overhead : 33);
    EXPECT_EQ(plan[1], differ ? 4 * overhead : 2);
  }
}

/// A step whose streams are equally long and cut in parts that end with them, though these are not equal; no
/// sequences if the model wants none such. Sets the multiprocessors.
DecodeCase step_of_parts(const DecodeVariant& variant, sim::Machine& machine) {
  DecodeCase c = step_of(variant, {1});
  const DecodeTensors tensors(c);
  const int most_known = 1024 / variant.block_n;  // of a part: beyond, blocks have shares of all streams
  for (int blocks = 2 * most_known + 1; blocks <= 3 * most_known; blocks += 2) {
    for (const int sequences : {3, 2, 5}) {
      core::DecodeProblem problem = tensors.problem();  // of which only shapes are looked at
      c.capacity = blocks * variant.block_n;
      problem.q.shape[0] = problem.o.shape[0] = problem.k_cache.shape[0] = problem.v_cache.shape[0] =
          sequences;
      problem.k_cache.shape[1] = problem.v_cache.shape[1] = c.capacity;
      for (machine.multiprocessors = 2; machine.multiprocessors <= 3 * sequences; ++machine.multiprocessors) {
        const auto args = decode::make_arguments(
            problem, variant, decode::grid_shape(problem, variant, machine.multiprocessors), nullptr);
        if (!args.shares_end_with_streams || args.known_streams || blocks % args.even_share.value() == 0)
          continue;
        c.lengths.assign(static_cast<std::size_t>(sequences), static_cast<std::int32_t>(c.capacity));
        return c;
      }
    }
  }
  return step_of(variant, {});
}

TEST_P(DecodeSharesOnSim, SharesOfEqualStreamsEndWithThem) {
  sim::Machine machine;
  DecodeCase c = step_of_parts(GetParam(), machine);
  if (c.lengths.empty()) {
    EXPECT_TRUE(GetParam().splits_keys() || GetParam().algorithm == decode::Algorithm::plain);
    GTEST_SKIP() << "the model cuts none so";
  }
  for (const std::int64_t blocks : {c.capacity / GetParam().block_n, std::int64_t{2}}) {
    c.lengths.assign(c.lengths.size(), static_cast<std::int32_t>(blocks * GetParam().block_n - 1));
    SCOPED_TRACE(testing::PrintToString(c));
    const DecodeTensors before(c), without = run(GetParam(), c, workspace_, machine);
    expect_correct(without, before);
    std::vector<std::int32_t> plan = plan_of(GetParam(), before, workspace_, machine);
    EXPECT_EQ(plan[0] % static_cast<int>(c.lengths.size()), 0) << "each is as long";
    if (blocks > 2) EXPECT_GT(plan[1] / 4, 0) << "and filled up";
    EXPECT_TRUE(same_bytes(run(GetParam(), c, workspace_, machine, plan).o, without.o));
  }
}

TEST_P(DecodeSharesOnSim, ShortSequencesBesideALongOneAreAllAttended) {
  DecodeCase c = step_of(GetParam(), {700, 3, 0, 64, 5, 1, 130, 2});
  c.kv_heads = takes_second(GetParam()) ? 2 : 1, c.q_heads = 2 * c.kv_heads, c.new_len = 1;
  sim::Machine machine;
  machine.policy = Policy::random;
  machine.multiprocessors = 4 + static_cast<int>(c.kv_heads);  // heads in turn, not team_blocks
  SCOPED_TRACE(testing::PrintToString(c));
  const DecodeTensors before(c), without = run(GetParam(), c, workspace_, machine);
  expect_correct(without, before);
  std::vector<std::int32_t> plan = plan_of(GetParam(), before, workspace_, machine);
  EXPECT_TRUE(same_bytes(run(GetParam(), c, workspace_, machine, plan).o, without.o));
}

TEST_P(DecodeSharesOnSim, ALongStepLeavesNoMultiprocessorOver) {
  const decode::DecodeVariant& variant = GetParam();
  DecodeCase c = step_of(variant, {700, 300, 64, 0, 130});
  c.kv_heads = 4, c.q_heads = 8, c.new_len = 1;
  sim::Machine machine;
  machine.policy = Policy::random;
  machine.multiprocessors = 22;  // five teams of four streams; or eleven of two
  machine.long_steps = true;
  SCOPED_TRACE(testing::PrintToString(c));
  const DecodeTensors before(c);
  const decode::GridShape grid = decode::grid_shape(before.problem(), variant, machine.multiprocessors);
  ASSERT_EQ(grid.differs(), variant.has_long_steps());
  if (!variant.has_long_steps()) GTEST_SKIP() << "has no such steps";
  EXPECT_EQ(grid.blocks(), 22);
  const DecodeTensors without = run(variant, c, workspace_, machine);
  expect_correct(without, before);
  std::vector<std::int32_t> plan = plan_of(variant, before, workspace_, machine);
  EXPECT_EQ(plan[1] % 2, 1);
  EXPECT_TRUE(same_bytes(run(variant, c, workspace_, machine, plan).o, without.o));
}

TEST_P(DecodeValuesOnSim, FixedSplitsGiveASequenceTheSameBitsAloneAndInABatch) {
  if (!GetParam().has_fixed_splits()) GTEST_SKIP();
  DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 7));
  c.lengths = {300, 64, 0, 450};
  c.page_size = 16, c.capacity = 480, c.split_size = 64, c.batch_index = false;
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 3;
  const DecodeTensors before(c), batch = run(GetParam(), c, workspace_, machine);
  expect_correct(batch, before);
  const DecodeTensors single(c);
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    machine.multiprocessors = 1 + static_cast<int>(b);
    const core::DecodeProblem problem = alone(single.problem(), b);
    const auto row =
        std::span(single.page_table).subspan(static_cast<std::size_t>(b * single.page_table_stride));
    const sim::DecodeMemory memory{workspace_.of(decode::workspace_bytes(problem, GetParam())), row, {}};
    const hw::sim::Report report = sim::simulate_decode(problem, GetParam(), memory, machine);
    ASSERT_TRUE(report.ok()) << report.text();
  }
  EXPECT_TRUE(same_bytes(single.o, batch.o));
  EXPECT_TRUE(same_bytes(single.lse, batch.lse));
}

TEST_P(DecodeSharesOnSim, ManyBlocksShareOneStream) {
  DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 5));
  c.lengths = {2600}, c.page_size = 64, c.capacity = 2624, c.split_size = 0, c.batch_index = false;
  c.mask = core::Mask::causal();
  c.q_heads /= c.kv_heads, c.kv_heads = 1;
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 20;  // more than are merged at once
  expect_correct(run(GetParam(), c, workspace_, machine), DecodeTensors(c));
}

/// Keys of equal scores weigh the same in every block of a loop, and in every part that is merged.
/// A case is lengths in blocks, blocks of the grid, and whether every block of keys is a split.
TEST_P(DecodeSharesOnSim, PartsOfManyBlocksAreMergedInGroups) {
  const decode::DecodeVariant& variant = GetParam();
  if (!variant.merges_in_groups()) GTEST_SKIP() << "one block merges all";
  struct Case {
    std::vector<std::int32_t> blocks;
    int multiprocessors;
    bool fixed_splits;
  };
  // Parts that blocks know, the last group being shorter; 75 of a stream that begins where another ends;
  // splits, which one block merges.
  for (const Case& of : {Case{{53}, 53, false}, {{2, 150, 1}, 100, false}, {{53}, 3, true}}) {
    DecodeCase c = step_of(variant, of.blocks);
    for (std::int32_t& length : c.lengths) length *= variant.block_n;
    c.capacity = std::ranges::max(c.lengths), c.q_heads = 3;
    if (of.fixed_splits) c.split_size = variant.block_n;
    sim::Machine machine;
    machine.policy = Policy::random;
    machine.multiprocessors = of.multiprocessors;
    SCOPED_TRACE(testing::PrintToString(c));
    expect_correct(run(variant, c, workspace_, machine), DecodeTensors(c));
  }
}

TEST_P(DecodeValuesOnSim, EqualScoresWeighTheSameInEveryBlock) {
  const DecodeVariant& variant = GetParam();
  DecodeCase c = step_of(variant, {40 * variant.block_n});
  c.capacity = c.lengths[0], c.rotary_dim = 0, c.softcap = 0, c.scale = 1, c.lse = true;
  c.eight_bit.scaled = c.eight_bit.per_token, c.eight_bit.hadamard = false;
  using Factors = std::pair<float, float>;  // of a query and a key, which 8 bits have to hold
  const float most = c.eight_bit.int8 ? 127.f : 448.f;
  for (const auto& [q, k] : variant.eight_bit() ? std::vector<Factors>{{8.f, 6.f}, {112.f, most}}
                                                : std::vector<Factors>{{8.f, 6.25f}, {8.f, 6176.f}}) {
    const float score = q * k;
    DecodeTensors tensors(c);
    test::make_scores_equal(tensors, q, k);
    tensors.k_scale.fill(1), tensors.v_scale.fill(1);
    sim::Machine machine;
    machine.multiprocessors = 2;
    SCOPED_TRACE(testing::Message() << c << " scores of " << score);
    run(variant, tensors, workspace_, machine);
    const std::vector<double> halves(tensors.o.values().size(), 0.5);
    EXPECT_LE(test::largest_difference(tensors.o.values(), halves), 3e-3);
    const std::vector<double> lse(tensors.lse.values().size(), score + std::log(c.lengths[0]));
    EXPECT_LE(test::largest_difference(tensors.lse.values(), lse), test::lse_tolerance);
  }
}

/// Probabilities are divided by a unit of their values' scales, which grows where these do from block to
/// block.
TEST_P(DecodeValuesOnSim, ScalesOfTokensThatGrowOrFallFromBlockToBlockEqualTheOracle) {
  const DecodeVariant& variant = GetParam();
  if (!variant.token_scales) GTEST_SKIP();
  DecodeCase c = step_of(variant, {4 * variant.block_n});
  c.q_heads = variant.query_rows;
  c.scale = 0.01f, c.softcap = 0;  // many keys make up each row: the rounding of none decides
  for (const int octaves : {1, -1}) {
    const auto tensors = [&] {
      DecodeTensors t(c);
      for (int token = 0; token < c.lengths[0]; ++token) {
        const auto [page, row] = t.place(0, token);
        t.v_scale.set(page, row, 0, 0, std::ldexp(0.3f, octaves * (token / variant.block_n)));
      }
      return t;
    };
    SCOPED_TRACE(testing::Message() << c << " by octaves of " << octaves);
    sim::Machine machine;
    machine.multiprocessors = 1;
    DecodeTensors after = tensors();
    run(variant, after, workspace_, machine);
    expect_correct(after, tensors());
  }
}

/// A warp of the plain kernel, or of two warpgroups, which has 16 rows, may have one that exists.
TEST_P(DecodeSharesOnSim, AWarpsFirstRowIsAttendedAlone) {
  if (GetParam().algorithm != Algorithm::plain && !GetParam().paired()) GTEST_SKIP();
  for (const std::int64_t rows : {17, 33, 49, 65, 113}) {
    if (rows > GetParam().query_rows) continue;
    DecodeCase c = step_of(GetParam(), {100});
    c.q_len = 1, c.kv_heads = 1, c.q_heads = rows;
    SCOPED_TRACE(c);
    const DecodeTensors before(c);
    expect_correct(run(GetParam(), c, workspace_, {}), before);
  }
}

TEST_P(DecodeValuesOnSim, OneBlockOfThoseThatWalkATokenAppendsIt) {
  DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 5));
  c.lengths = {60}, c.new_len = 9, c.capacity = 128, c.page_size = 16;
  c.split_size = GetParam().has_fixed_splits() ? 64 : 0;
  c.batch_index = false, c.mask = core::Mask::full();
  c.q_len = 1, c.kv_heads = 1, c.q_heads = GetParam().query_rows + 1;  // two row tiles, two splits
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 4;
  const DecodeTensors before(c);
  expect_correct(run(GetParam(), c, workspace_, machine), before);
}

TEST_P(DecodeSharesOnSim, ABlockReadsMorePagesThanItsProducerKeeps) {
  DecodeCase c = step_of(GetParam(), {4 * GetParam().block_n + 1});
  c.page_size = 1;
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 1;
  expect_correct(run(GetParam(), c, workspace_, machine), DecodeTensors(c));
}

/// Their first keys are on the way before a length is known: of sequences without any too.
TEST_P(DecodeSharesOnSim, AShortStepHasABlockForEachStream) {
  for (const int new_len : {0, 1}) {
    DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 9 + static_cast<unsigned>(new_len)));
    c.lengths = {200, 0, 255, 5, 128}, c.new_len = new_len, c.capacity = 256, c.split_size = 0;
    c.page_size = takes_second(GetParam()) && new_len > 0 ? 16 : 0;
    sim::Machine machine;
    machine.policy = new_len > 0 ? Policy::late : Policy::random;
    const DecodeTensors before(c);
    const std::int64_t streams = decode::streams_of(before.problem(), GetParam()) * c.batch();
    machine.multiprocessors = static_cast<int>(core::ceil_div(streams, GetParam().resident));
    SCOPED_TRACE(testing::PrintToString(c));
    const auto args = decode::make_arguments(
        before.problem(), GetParam(),
        decode::grid_shape(before.problem(), GetParam(), machine.multiprocessors), nullptr);
    EXPECT_EQ(args.known_streams, GetParam().knows_streams());
    EXPECT_FALSE(args.known_streams && args.merges_apart);
    EXPECT_EQ(args.starts_at_key_0,
              args.known_streams && c.page_size == 0 && c.mask.left == core::Mask::unlimited);
    const DecodeTensors without = run(GetParam(), c, workspace_, machine);
    expect_correct(without, before);
    std::vector<std::int32_t> plan = plan_of(GetParam(), before, workspace_, machine);
    EXPECT_TRUE(same_bytes(run(GetParam(), c, workspace_, machine, plan).o, without.o));
  }
}

/// The multiprocessors with which blocks know parts of streams; 0: none.
int multiprocessors_for_known_parts(const DecodeVariant& variant, const DecodeTensors& tensors) {
  for (int count = 2; count <= 16; ++count) {
    const auto args = decode::make_arguments(tensors.problem(), variant,
                                             decode::grid_shape(tensors.problem(), variant, count), nullptr);
    if (args.known_streams && args.known_parts.value() > 1) return count;
  }
  return 0;
}

TEST_P(DecodeSharesOnSim, BlocksKnowTheirPartsOfStreams) {
  int tried = 0;
  for (const auto& lengths : {std::vector<std::int32_t>{1500}, {1000, 0, 10, 300}}) {
    DecodeCase c = step_of(GetParam(), lengths);
    c.kv_heads = 2, c.q_heads = 6, c.new_len = static_cast<int>(lengths.size()) / 4, c.capacity = 1536;
    c.page_size = takes_second(GetParam()) ? 16 : 0;
    const DecodeTensors before(c);
    sim::Machine machine;
    machine.policy = Policy::random;
    machine.multiprocessors = multiprocessors_for_known_parts(GetParam(), before);
    if (machine.multiprocessors == 0) continue;
    SCOPED_TRACE(testing::PrintToString(c));
    expect_correct(run(GetParam(), c, workspace_, machine), before);
    ++tried;
  }
  if (GetParam().algorithm != Algorithm::plain)
    EXPECT_EQ(tried > 0, GetParam().knows_streams() && !GetParam().merges_apart());
}

TEST_P(DecodeSharesOnSim, AShareEndsOneStreamAndBeginsAnother) {
  DecodeCase c = test::draw_case(GetParam(), seed_for(GetParam(), 5));
  c.lengths = {500, 300}, c.new_len = 0, c.capacity = 512, c.page_size = 0, c.split_size = 0;
  c.batch_index = false, c.mask = core::Mask::full();
  c.q_heads /= c.kv_heads, c.kv_heads = 1;
  SCOPED_TRACE(testing::PrintToString(c));
  sim::Machine machine;
  machine.multiprocessors = 3;
  expect_correct(run(GetParam(), c, workspace_, machine), DecodeTensors(c));
}

}  // namespace
}  // namespace tandem
