// The Hopper decode against the oracle: random steps, every compiled variant, long and ragged batches, and
// what users rely on: plans, fixed splits, one workspace for all, CUDA graphs.
#include <algorithm>
#include <cmath>
#include <exception>
#include <gtest/gtest.h>
#include <omp.h>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/dtype.h"
#include "decode/plan.h"
#include "tests/gpu/device_decode.h"
#include "tests/support/compare.h"

namespace tandem::test {
namespace {

using decode::Algorithm;
using decode::DecodeVariant;

constexpr tandem_decode_kernel kernels[] = {TANDEM_DECODE_AUTO, TANDEM_DECODE_PLAIN, TANDEM_DECODE_SHARED_P,
                                            TANDEM_DECODE_REGISTER_P};

/// An 8-bit cache, whose rows begin at multiples of 16 bytes.
void make_eight_bit(DecodeCase& c, Random& random) {
  draw_eight_bit_cache(c, random);
  c.cache.row_gap = static_cast<int>(32 - c.head_dim % 16);
}

DecodeCase random_case(std::uint64_t seed) {
  static constexpr std::int64_t head_dims[] = {64, 128, 256, 40, 80, 96, 192};
  Random random(~seed);
  const auto dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  DecodeCase c = random_decode_case(seed, dtype, head_dims[random() % std::size(head_dims)]);
  c.kernel = kernels[random() % 4];
  if (random() % 8 == 0) {
    c.head_dim = random() % 2 == 0 ? 512 : 264;
    c.kernel = random() % 2 == 0 ? TANDEM_DECODE_AUTO : TANDEM_DECODE_SHARED_P;
  }
  if (random() % 8 == 0) c.q_heads = c.kv_heads * 64;
  const std::uint64_t kind = random() % 5;
  if (kind == 0 && c.head_dim <= 256) make_eight_bit(c, random);
  if (kind == 1) {  // of latent attention
    c.head_dim = random() % 2 == 0 ? 576 : 8 * static_cast<std::int64_t>(2 + random() % 71);
    const auto columns = static_cast<std::uint64_t>(std::min<std::int64_t>(512, c.head_dim - 8) / 8);
    put_values_into_keys(
        c, 8 * static_cast<std::int64_t>(columns - random() % (random() % 2 == 0 ? 1 : columns)));
    c.kernel = random() % 2 == 0 ? TANDEM_DECODE_AUTO : TANDEM_DECODE_SHARED_P;
  }
  return c;
}

/// Runs all cases at the same time, each thread in a stream and a workspace of its own: the oracle on the CPU
/// takes longer than the card.
void expect_all_match(const std::vector<DecodeCase>& cases) {
  const int count = static_cast<int>(cases.size());
  std::vector<std::string> failures(cases.size());
#pragma omp parallel num_threads(std::min(count, omp_get_max_threads()))
  {
    const Stream own;
    DecodeWorkspace workspace;  // for steps of all shapes
#pragma omp for schedule(dynamic)
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      try {
        failures[at] = failure_of(cases[at], workspace, own.get());
      } catch (const std::exception& error) {
        failures[at] = error.what();
      }
    }
  }
  for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(failures[i], "") << cases[i];
}

TEST_F(HopperDecode, RandomStepsMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  std::vector<DecodeCase> cases;
  for (std::uint64_t i = 0; i < 400; ++i) cases.push_back(random_case(first + i));
  expect_all_match(cases);
}

// ---- Variants

tandem_decode_kernel kernel_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::plain:
      return TANDEM_DECODE_PLAIN;
    case Algorithm::shared_p:
      return TANDEM_DECODE_SHARED_P;
    case Algorithm::register_p:
      return TANDEM_DECODE_REGISTER_P;
    case Algorithm::eight_bit:
    case Algorithm::paired:
      break;
  }
  return TANDEM_DECODE_AUTO;
}

std::string name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::plain:
      return "plain";
    case Algorithm::shared_p:
      return "shared_p";
    case Algorithm::register_p:
      return "register_p";
    case Algorithm::eight_bit:
      return "eight_bit";
    case Algorithm::paired:
      return "paired";
  }
  throw std::invalid_argument("no algorithm of this number");
}

std::string name_of(const DecodeVariant& v) {
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + "_d" + std::to_string(v.head_dim) +
         "_" + name_of(v.algorithm) + "_" + std::to_string(v.query_rows) + "x" + std::to_string(v.block_n) +
         (v.resident == 2   ? "_by_two"
          : v.resident == 3 ? "_by_three"
                            : "") +
         (v.token_scales ? "_token_scales" : "") + (v.two_part_keys ? "_two_part" : "") +
         (v.element == decode::Element::int8 ? "_int8"
          : v.hadamard                       ? "_hadamard"
                                             : "");
}

/// Those that list their queries serve calls of variable lengths (varlen_test.cpp).
std::vector<DecodeVariant> built_variants() {
  std::vector<DecodeVariant> variants;
  for (const DecodeVariant& v : decode::all_variants())
    if (!v.lists_queries()) variants.push_back(v);
  return variants;
}

class EveryDecodeVariant : public HopperDecode, public testing::WithParamInterface<DecodeVariant> {};
INSTANTIATE_TEST_SUITE_P(Built, EveryDecodeVariant, testing::ValuesIn(built_variants()),
                         [](const auto& info) { return name_of(info.param); });

/// A full tile of query rows, ragged lengths, pages, new tokens.
DecodeCase case_for(const DecodeVariant& v) {
  DecodeCase c;
  c.dtype = v.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = v.head_dim;
  c.kv_heads = 2, c.q_heads = 2 * v.query_rows;
  c.lengths = {700, 0, 1023, 64, 5};
  c.new_len = 1, c.page_size = 64, c.rotary_dim = 64;
  c.capacity = 2048;  // a short step may go to a narrower variant
  c.kernel = kernel_of(v.algorithm);
  if (v.paired()) c.block_m = v.query_rows, c.block_n = v.block_n;
  if (v.eight_bit()) {
    c.eight_bit = {.on = true, .per_token = v.token_scales, .by_sequence = true, .by_head = true};
    c.eight_bit.int8 = v.element == decode::Element::int8, c.eight_bit.hadamard = v.hadamard;
    c.cache.row_gap = 16;
  }
  if (v.two_part_keys) {
    c.head_dim = v.head_dim - v.value_dim;
    give_second_part(c, v.value_dim);
  } else if (v.values_in_keys()) {
    put_values_into_keys(c, v.value_dim);
  }
  if (!v.is_alone() && v.query_rows <= 16) {  // serve many short streams only
    c.kernel = TANDEM_DECODE_AUTO;
    c.capacity = 256;
    const bool has_large_blocks = v.block_n == 128 || v.head_dim > 128;  // so that they are worth it
    c.kv_heads = v.eight_bit() ? 8 : v.resident < 3 ? 4 : has_large_blocks ? 16 : 8;
    c.q_heads = c.kv_heads * v.query_rows;
    c.lengths.assign(40, 130);
    for (std::size_t b = 0; b < c.lengths.size(); b += 3) c.lengths[b] = static_cast<std::int32_t>(6 * b);
  }
  return c;
}

std::vector<DecodeCase> cases_for(const DecodeVariant& v) {
  std::vector<DecodeCase> cases;
  for (const std::int64_t page_size : {0, 1, 16, 64, 256}) {
    DecodeCase c = case_for(v);
    c.page_size = page_size;
    c.interleaved = page_size == 16;
    if (page_size == 64) c.q_len = 4, c.q_heads /= 4, c.mask = core::Mask::causal();
    if (page_size == 256) c.softcap = 5;
    if (page_size == 256 && c.kernel != TANDEM_DECODE_AUTO) c.split_size = 128;
    cases.push_back(c);
  }
  return cases;
}

TEST_P(EveryDecodeVariant, MatchesTheOracle) {
  const std::vector<DecodeCase> cases = cases_for(GetParam());
  for (const DecodeCase& c : cases) {
    const DecodeVariant* chosen = decode::choose_variant(DecodeTensors(c).problem());
    ASSERT_NE(chosen, nullptr) << c;
    ASSERT_EQ(*chosen, GetParam()) << "chosen is " << name_of(*chosen) << " for " << c;
  }
  expect_all_match(cases);
}

// ---- Large and ragged

/// The case, by every kernel.
std::vector<DecodeCase> by_every_kernel(DecodeCase c) {
  std::vector<DecodeCase> cases;
  for (const tandem_decode_kernel kernel : kernels) {
    c.kernel = kernel;
    cases.push_back(c);
  }
  return cases;
}

TEST_F(HopperDecode, LongSequencesMatchTheOracle) {
  DecodeCase c{.q_len = 8, .q_heads = 32, .head_dim = 128};
  c.lengths = {20'000}, c.capacity = 20'480, c.page_size = 64;
  expect_all_match(by_every_kernel(c));
}

/// Of so many parts that they are merged in groups.
TEST_F(HopperDecode, LongSequencesOfOneKeyHeadMatchTheOracle) {
  for (const auto& [head_dim, rows, lengths] : {std::tuple{64, 16, std::vector<std::int32_t>{39'999}},
                                                {112, 7, {9'000, 11'000}},
                                                {256, 7, {300, 9'000, 129}}}) {
    DecodeCase c{.q_heads = rows, .kv_heads = 1, .head_dim = head_dim};
    c.lengths = lengths, c.capacity = *std::ranges::max_element(lengths) + 1, c.new_len = 1;
    expect_all_match({c});
  }
}

TEST_F(HopperDecode, LongSequencesOverEightBitsMatchTheOracle) {
  for (const bool per_token : {false, true}) {
    DecodeCase c{.q_len = 2, .q_heads = 32, .kv_heads = 4, .head_dim = 128};
    c.lengths = {20'000, 7'000, 12'345}, c.capacity = 20'480, c.page_size = 64, c.new_len = 2;
    c.rotary_dim = 128, c.mask = core::Mask::causal(), c.cache.row_gap = 16;
    c.eight_bit = {.on = true, .per_token = per_token, .by_sequence = true, .by_head = true};
    expect_all_match({c});
    c.eight_bit.int8 = c.eight_bit.hadamard = true;
    expect_all_match({c});
  }
}

TEST_F(HopperDecode, ASecondPartOfQueriesMeetsTheValues) {
  for (const std::int64_t page_size : {0, 64}) {
    DecodeCase c{.q_len = 2, .q_heads = 64, .kv_heads = 1, .head_dim = 64};
    c.lengths = {20'000, 7'000, 12'345}, c.capacity = 20'480, c.page_size = page_size, c.new_len = 2;
    c.rotary_dim = 64, c.mask = core::Mask::causal();
    give_second_part(c, 512);
    expect_all_match({c});
  }
}

TEST_F(HopperDecode, AMillionEqualKeysWeighTheSame) {
  constexpr std::int32_t keys = 1 << 20;
  DecodeCase c{.q_heads = 4, .head_dim = 64, .scale = 1};
  c.lengths = {keys}, c.capacity = keys;
  for (const DecodeCase& by_kernel : by_every_kernel(c)) {
    for (const float k_value : {6.25f, 125.f, 1224.f, 6176.f}) {
      DecodeTensors tensors(by_kernel);
      make_scores_equal(tensors, 8, k_value);
      SCOPED_TRACE(testing::Message() << by_kernel << " scores of " << 8 * k_value);
      DecodeWorkspace workspace;
      const DeviceDecode device(tensors);
      ASSERT_EQ(device.run(workspace), TANDEM_OK);
      device.read(tensors);
      const std::vector<double> halves(tensors.o.values().size(), 0.5);
      EXPECT_LE(largest_difference(tensors.o.values(), halves), 3e-3);
      const std::vector<double> lse(tensors.lse.values().size(), 8 * k_value + std::log(double{keys}));
      EXPECT_LE(largest_difference(tensors.lse.values(), lse), lse_tolerance);
    }
  }
}

/// References are raised behind a stream's first block, of some rows or of all.
TEST_F(HopperDecode, ScoresThatGrowFromBlockToBlockMatchTheOracle) {
  for (const std::int64_t head_dim : {64, 128, 256, 512}) {
    for (const std::int64_t rows : {1, 16, 32}) {
      for (const auto& [block, growth] : {std::pair{128, 2.}, {256, 6.}, {128, 0.25}}) {
        DecodeCase c{.q_heads = 2 * rows, .kv_heads = 2, .head_dim = head_dim};
        c.lengths = {500, 333}, c.capacity = 500, c.lse = rows != 16;
        SCOPED_TRACE(testing::Message() << c << " by " << growth);
        DecodeTensors before(c);
        grow_keys(before, block, growth);
        DecodeTensors after = before;
        DecodeWorkspace workspace;
        const DeviceDecode device(before);
        ASSERT_EQ(device.run(workspace), TANDEM_OK);
        device.read(after);
        EXPECT_EQ(difference(after, before), "");
      }
    }
  }
}

TEST_F(HopperDecode, RaggedBatchesMatchTheOracle) {
  DecodeCase c{.q_heads = 8, .kv_heads = 2, .head_dim = 128, .capacity = 4096, .page_size = 16};
  c.new_len = 1;
  c.lengths.assign(100, 30);
  for (std::size_t b = 0; b < c.lengths.size(); b += 7) c.lengths[b] = static_cast<std::int32_t>(40 * b);
  expect_all_match(by_every_kernel(c));
}

// Each has a block of its own there, of which some begin when others end: of tiles of 8, 16 and 32 rows, with
// two and three blocks of a multiprocessor; and of one block of keys.
TEST_F(HopperDecode, MoreStreamsThanThereIsRoomForMatchTheOracle) {
  struct Step {
    std::int64_t head_dim, group, q_len, batch, capacity = 320;
  };
  for (const Step& step : {Step{64, 1, 1, 60},
                           {64, 4, 4, 60},
                           {64, 5, 4, 41},
                           {128, 4, 1, 83},
                           {128, 5, 2, 61},
                           {128, 8, 4, 41},
                           {256, 1, 1, 41},
                           {40, 1, 1, 83},
                           {64, 8, 1, 83, 100},
                           {64, 12, 1, 83, 90},
                           {128, 12, 1, 61, 64}}) {
    DecodeCase c{.q_len = step.q_len, .q_heads = 8 * step.group, .kv_heads = 8, .head_dim = step.head_dim};
    c.capacity = step.capacity, c.page_size = step.head_dim % 128 == 0 ? 64 : 0, c.new_len = step.q_len;
    c.mask = core::Mask::causal();
    c.lengths.clear();
    for (std::int64_t b = 0; b < step.batch; ++b)
      c.lengths.push_back(static_cast<std::int32_t>(b % 9 == 4 ? 0 : 37 * b % (step.capacity - 10)));
    const core::DecodeProblem problem = DecodeTensors(c).problem();
    const DecodeVariant& variant = *decode::choose_variant(problem);
    const int blocks = decode::make_record(problem, variant, core::hopper_sm_count, nullptr).blocks;
    EXPECT_EQ(blocks, 8 * step.batch) << c;
    EXPECT_GT(blocks, core::hopper_sm_count * variant.resident) << c;
    expect_all_match({c});
  }
}

// Of lengths that say otherwise than the capacity: some blocks have no keys, or those of a few.
TEST_F(HopperDecode, PartsThatFillTheChipMatchTheOracle) {
  struct Step {
    std::int64_t head_dim, group, batch, capacity, parts;
  };
  for (const Step& step :
       {Step{64, 5, 9, 3862, 5}, {64, 1, 12, 2000, 4}, {128, 4, 12, 1347, 4}, {128, 2, 8, 4000, 6}}) {
    DecodeCase c{.q_heads = 8 * step.group, .kv_heads = 8, .head_dim = step.head_dim};
    c.capacity = step.capacity, c.new_len = 1, c.lengths.clear();
    for (std::int64_t b = 0; b < step.batch; ++b)
      c.lengths.push_back(static_cast<std::int32_t>(b % 5 == 3 ? 0 : 977 * b % step.capacity));
    const core::DecodeProblem p = DecodeTensors(c).problem();
    const auto record = decode::make_record(p, *decode::choose_variant(p), core::hopper_sm_count, nullptr);
    EXPECT_EQ(record.variant.resident, 3) << c;
    EXPECT_EQ(record.arguments.known_parts.value(), step.parts) << c;
    expect_all_match({c});
  }
}

// ---- What users rely on

/// A step with all features, whose streams are split over blocks.
DecodeCase full_case() {
  DecodeCase c{.q_len = 2, .q_heads = 8, .kv_heads = 2, .head_dim = 128, .new_len = 2};
  c.lengths = {900, 3, 0, 2000}, c.capacity = 2048, c.page_size = 64, c.batch_index = true;
  c.rotary_dim = 128, c.mask = core::Mask::causal();
  return c;
}

bool same_outputs(const DecodeTensors& a, const DecodeTensors& b) {
  return std::ranges::equal(a.o.storage(), b.o.storage()) &&
         std::ranges::equal(a.lse.storage(), b.lse.storage());
}

/// 24 sequences in groups of several tiles, of a few, of one and of none, whose prefixes end anywhere.
DecodeCase sharing_case(std::int64_t head_dim) {
  DecodeCase c;
  c.head_dim = head_dim, c.q_heads = 8, c.kv_heads = 2, c.capacity = 4096, c.page_size = 16;
  for (std::int32_t i = 0; i < 24; ++i) c.lengths.push_back(1500 + 77 * i);
  c.lengths.erase(c.lengths.begin());
  c.prefix_sequences = {1, 18, 18, 22, 23}, c.prefix_lengths = {1490, 64, 2000, 300};
  c.mask = core::Mask::causal();
  return c;
}

TEST_F(HopperDecode, StepsThatShareAPrefixMatchTheOracle) {
  std::vector<DecodeCase> cases;
  for (const std::int64_t head_dim : {64, 128, 256, 80})
    for (const bool rotated : {false, true}) {
      DecodeCase c = sharing_case(head_dim);
      if (rotated) c.rotary_dim = 32, c.new_len = c.q_len = 2, c.sinks = true;
      cases.push_back(c);
    }
  expect_all_match(cases);
}

/// Captures three layers of a step while the device has other lengths, and replays them with the case's.
void check_replays(const DecodeCase& c, const DecodeTensors& before,
                   const std::vector<std::int32_t>& captured) {
  DeviceDecode device(before);
  DecodeWorkspace workspace;
  ASSERT_EQ(device.run(workspace), TANDEM_OK)
      << tandem_last_error();  // the workspace has its size from here on
  const Stream stream;
  device.write_lengths(captured);
  const Graph graph(stream, [&](cudaStream_t s) {
    for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(device.run(workspace, s), TANDEM_OK);
  });
  for (int replay = 0; replay < 5; ++replay) {
    device.write(before);
    graph.replay();
    DecodeTensors after(c);
    device.read(after);
    EXPECT_EQ(difference(after, before), "") << "replay " << replay;
  }
}

/// Every replay finds groups and lengths anew.
TEST_F(HopperDecode, AGraphOfStepsThatShareAPrefixIsReplayed) {
  DecodeCase c = sharing_case(128);
  const DecodeTensors before(c);
  check_replays(c, before, std::vector<std::int32_t>(c.lengths.size(), 3));
}

TEST_F(HopperDecode, APlanChangesNoBit) {
  DecodeWorkspace workspace;
  const DecodeTensors before(full_case());
  DecodeTensors without(full_case()), with(full_case());
  DeviceDecode device(before);
  ASSERT_EQ(device.run(workspace), TANDEM_OK) << tandem_last_error();
  device.read(without);
  device.write(before);
  device.make_plan();
  for (int layer = 0; layer < 3; ++layer) {
    device.write(before);
    ASSERT_EQ(device.run(workspace), TANDEM_OK) << tandem_last_error();
    device.read(with);
    EXPECT_EQ(difference(with, before), "");
    EXPECT_TRUE(same_outputs(with, without)) << "layer " << layer;
  }
}

TEST_F(HopperDecode, EveryCallGivesTheSameBitsInOneWorkspace) {
  DecodeWorkspace workspace;
  const DecodeTensors before(full_case());
  DecodeTensors first(full_case());
  for (int call = 0; call < 50; ++call) {
    DecodeTensors after(full_case());
    const DeviceDecode device(before);
    ASSERT_EQ(device.run(workspace), TANDEM_OK) << tandem_last_error();
    device.read(call == 0 ? first : after);
    if (call > 0) {
      ASSERT_TRUE(same_outputs(after, first)) << "call " << call;
    }
    DecodeCase other = random_case(static_cast<std::uint64_t>(call) + 1);  // leaves its counters at 0
    const DeviceDecode other_device{DecodeTensors(other)};
    ASSERT_EQ(other_device.run(workspace), TANDEM_OK) << other << tandem_last_error();
  }
}

TEST_F(HopperDecode, FixedSplitsGiveASequenceTheSameBitsInAnyBatch) {
  DecodeWorkspace workspace;
  for (const tandem_decode_kernel kernel : kernels) {
    DecodeCase c = full_case();
    c.batch_index = false, c.split_size = 256, c.kernel = kernel;
    DecodeTensors batch(c);
    const DeviceDecode device(batch);
    ASSERT_EQ(device.run(workspace), TANDEM_OK) << tandem_last_error();
    device.read(batch);
    const DecodeTensors before(c);
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      DecodeTensors after(c);
      const DeviceDecode all(before);
      tandem_decode_args args = all.call().args;
      for (tandem_tensor* t : {&args.q, &args.o, &args.lse, &args.k_new, &args.v_new}) {
        t->data = static_cast<std::byte*>(t->data) +
                  static_cast<std::size_t>(b * t->stride[0]) * core::size_of(t->dtype);
        t->shape[0] = 1;
      }
      tandem_cache cache = all.call().cache;
      cache.lengths += b;
      cache.page_table += b * cache.page_table_stride;
      args.cache = &cache;
      std::size_t bytes = 0;
      ASSERT_EQ(tandem_decode_workspace(&args, &bytes), TANDEM_OK) << tandem_last_error();
      ASSERT_EQ(tandem_decode(&args, workspace.of(bytes), workspace.bytes(), nullptr), TANDEM_OK)
          << tandem_last_error();
      all.read(after);
      for (std::int64_t i = 0; i < c.q_len; ++i)
        for (std::int64_t h = 0; h < c.q_heads; ++h) {
          ASSERT_EQ(after.lse.at(b, i, h, 0), batch.lse.at(b, i, h, 0)) << "sequence " << b;
          for (std::int64_t e = 0; e < c.head_dim; ++e)
            ASSERT_EQ(after.o.at(b, i, h, e), batch.o.at(b, i, h, e)) << "sequence " << b;
        }
    }
  }
}

TEST_F(HopperDecode, AGraphOfShortSequencesIsReplayedWithLongOnes) {
  DecodeCase c = full_case();
  c.new_len = 0;
  const DecodeTensors before(c);
  check_replays(c, before, {1, 0, 0, 5});
}

}  // namespace
}  // namespace tandem::test
