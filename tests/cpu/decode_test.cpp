// Decode on the CPU: the oracle against a plain loop, the fast backend against the oracle.
#include "cpu/decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "core/dtype.h"
#include "cpu/parallel.h"
#include "tests/cpu/targets.h"
#include "tests/cpu/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/decode_case.h"

namespace tandem::test {
namespace {

DecodeCase random_case(std::uint64_t seed) {
  Random random(~seed);
  const auto dtype = static_cast<tandem_dtype>(TANDEM_BF16 + random() % 3);
  DecodeCase c = random_decode_case(seed, dtype, static_cast<std::int64_t>(8 + random() % 32 * 8));
  // The CPU takes any page size and any strides.
  if (random() % 4 == 0) c.page_size = 7, c.capacity = (c.capacity + 6) / 7 * 7;
  for (Layout* layout : {&c.cache, &c.o, &c.lse_layout}) *layout = random_layout(random);
  for (Layout* layout : {&c.q, &c.added}) *layout = random_input_layout(random);
  const std::uint64_t kind = random() % 6;
  if (kind < 2) draw_eight_bit_cache(c, random);
  if (kind == 2) c.value_dim = static_cast<std::int64_t>(8 + random() % 64 * 8);
  if (kind == 3) {  // of latent attention, up to its 576 columns
    c.head_dim = static_cast<std::int64_t>(16 + random() % 71 * 8);
    const auto columns = static_cast<std::uint64_t>(std::min<std::int64_t>(c.head_dim - 8, 512) / 8);
    put_values_into_keys(c, static_cast<std::int64_t>(8 + random() % columns * 8));
  }
  if (random() % 2 == 0) draw_chunks_slopes_and_tree(c, random);
  c.qv = random() % 4 == 0;
  return c;
}

std::uint64_t first_seed() {  // another one: --gtest_random_seed
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
}

void run(DecodeTensors& t) {
  const core::DecodeProblem problem = t.problem();
  Workspace workspace(cpu::decode_workspace(problem));
  cpu::decode(problem, workspace.data());
  EXPECT_TRUE(workspace.guards_intact());
}

/// The outputs and the cache after a step.
void expect_result(const DecodeTensors& after, const ForwardValues& standard,
                   const cpu::ReferenceValues& reference, const DecodeTensors& before) {
  const Comparison o = compare(after.o.values(), standard.o, reference.o);
  EXPECT_TRUE(o) << "o: " << o;
  EXPECT_TRUE(after.o.guards_intact());
  EXPECT_EQ(after.cache_failure(before), "");
  if (!after.setup.lse) {
    EXPECT_TRUE(after.lse.untouched());
    return;
  }
  const Comparison lse = compare(after.lse.values(), standard.lse, reference.lse);
  EXPECT_TRUE(lse) << "lse: " << lse;
  EXPECT_TRUE(after.lse.guards_intact());
}

void expect_correct(const DecodeCase& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const DecodeTensors before(c);
  const ForwardValues standard = standard_decode(before);
  const cpu::ReferenceValues reference = cpu::reference_decode_values(before.problem());
  on_each_target([&] {
    DecodeTensors t(c);
    run(t);
    expect_result(t, standard, reference, before);
  });
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinities
    ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << "at " << i;
  }
}

TEST(ReferenceDecode, RandomStepsMatchAPlainLoop) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 60; ++seed) {
    const DecodeCase c = random_case(seed);
    SCOPED_TRACE(::testing::PrintToString(c));
    const DecodeTensors t(c);
    const cpu::ReferenceValues values = cpu::reference_decode_values(t.problem());
    const ForwardValues expected = plain_decode(t);
    expect_near(values.o, expected.o, 1e-5);  // the oracle keeps rotated queries in fp32
    expect_near(values.lse, expected.lse, 1e-5);
    if (HasFailure()) return;
  }
}

TEST(ReferenceDecode, WritesItsValuesRoundedAndAppends) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 30; ++seed) {
    const DecodeCase c = random_case(seed);
    SCOPED_TRACE(::testing::PrintToString(c));
    const DecodeTensors before(c);
    DecodeTensors t(c);
    cpu::reference_decode(t.problem());
    expect_result(t, standard_decode(before), cpu::reference_decode_values(before.problem()), before);
    if (HasFailure()) return;
  }
}

TEST(ReferenceDecode, AQuarterTurnByHand) {
  DecodeCase c;
  c.dtype = TANDEM_FP32, c.head_dim = 16, c.lengths = {0}, c.new_len = 1, c.rotary_dim = 16;
  for (const bool interleaved : {false, true}) {
    c.interleaved = interleaved;
    DecodeTensors t(c);
    t.cos.fill(0), t.sin.fill(1);
    for (std::int64_t e = 0; e < 16; ++e) t.k_new.set(0, 0, 0, e, static_cast<float>(e + 1));
    cpu::reference_decode(t.problem());
    const double first = t.k_cache.at(0, 0, 0, 0), second = t.k_cache.at(0, 0, 0, interleaved ? 1 : 8);
    EXPECT_EQ(first, interleaved ? -2 : -9);
    EXPECT_EQ(second, 1);
    EXPECT_EQ(t.v_cache.at(0, 0, 0, 3), t.v_new.at(0, 0, 0, 3));
  }
}

TEST(CpuDecode, RandomStepsMatchTheOracle) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 60; ++seed) {
    expect_correct(random_case(seed));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CpuDecode, AppendsWhatAnEightBitCacheHolds) {
  DecodeCase c;
  c.dtype = TANDEM_FP32, c.head_dim = 16, c.lengths = {0}, c.new_len = 1;
  for (const bool per_token : {false, true}) {
    c.eight_bit = {.on = true, .per_token = per_token};
    DecodeTensors t(c);
    t.k_scale.fill(0.5f), t.v_scale.fill(0.5f);
    t.k_new.fill(0), t.v_new.fill(0);
    t.k_new.set(0, 0, 0, 1, 1.03f), t.k_new.set(0, 0, 0, 2, -300.f), t.v_new.set(0, 0, 0, 3, 900.f);
    run(t);
    // 2.06 is between 2 and 2.25, 600 beyond 448; with a scale of its own, 1, -300 is between 288 and 320.
    EXPECT_EQ(t.k_cache.at(0, 0, 0, 1), per_token ? 1 : 2);
    EXPECT_EQ(t.k_cache.at(0, 0, 0, 2), per_token ? -288 : -448);
    EXPECT_EQ(t.v_cache.at(0, 0, 0, 3), per_token ? 224 : 448);
    EXPECT_EQ(t.k_scale.at(0, 0, 0, 0), per_token ? 1 : 0.5);
    EXPECT_EQ(t.v_scale.at(0, 0, 0, 0), per_token ? 4 : 0.5);
    EXPECT_EQ(t.o.at(0, 0, 0, 3), per_token ? 896 : 224)
        << "what was appended is attended to as later steps will";
  }
}

TEST(CpuDecode, AppendsWhatACacheOfInt8Holds) {
  DecodeCase c;
  c.dtype = TANDEM_FP32, c.head_dim = 16, c.lengths = {0}, c.new_len = 1;
  for (const bool per_token : {false, true}) {
    c.eight_bit = {.on = true, .per_token = per_token, .int8 = true};
    DecodeTensors t(c);
    t.k_scale.fill(0.5f), t.v_scale.fill(0.5f);
    t.k_new.fill(0), t.v_new.fill(0);
    t.k_new.set(0, 0, 0, 1, 3.6f), t.k_new.set(0, 0, 0, 2, -254.f), t.v_new.set(0, 0, 0, 3, 900.f);
    run(t);
    EXPECT_EQ(t.k_cache.at(0, 0, 0, 1), per_token ? 2 : 7);
    EXPECT_EQ(t.k_cache.at(0, 0, 0, 2), -127);
    EXPECT_EQ(t.v_cache.at(0, 0, 0, 3), 127);
    EXPECT_EQ(t.k_scale.at(0, 0, 0, 0), per_token ? 2 : 0.5);
    EXPECT_NEAR(t.o.at(0, 0, 0, 3), per_token ? 900 : 63.5, 1e-3)
        << "what was appended is attended to as later steps will";
  }
}

/// Normal numbers, one in a thousand of them with ten times the deviation besides.
void fill_with_outliers(HostTensor& t, std::uint64_t seed, bool bf16) {
  Random random(seed);
  std::normal_distribution<float> normal;
  const auto [b, s, h, d] = t.view().shape;
  for (std::int64_t row = 0; row < b * s * h; ++row)
    for (std::int64_t e = 0; e < d; ++e) {
      const float x = normal(random) + (random() % 1000 == 0 ? 10 * normal(random) : 0);
      t.set(row / (s * h), row / h % s, row % h, e, bf16 ? static_cast<float>(core::Bf16::from(x)) : x);
    }
}

/// What docs/fp8.md says of errors.
TEST(CpuDecode, AHadamardMatrixBringsInt8NearBf16) {
  const auto outputs = [](const DecodeCase::EightBit& eight_bit, bool bf16) {
    DecodeCase c;
    c.dtype = TANDEM_FP32, c.head_dim = 128, c.q_len = 8, c.q_heads = 32;
    c.lengths = {0}, c.new_len = c.capacity = 2000;
    c.eight_bit = eight_bit, c.seed = 11;
    DecodeTensors t(c);
    fill_with_outliers(t.q, 1, bf16), fill_with_outliers(t.k_new, 2, bf16),
        fill_with_outliers(t.v_new, 3, bf16);
    return cpu::reference_decode_values(t.problem()).o;
  };
  const std::vector<double> exact = outputs({}, false);
  const auto rmse = [&exact](const std::vector<double>& o) {
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += (o[i] - exact[i]) * (o[i] - exact[i]);
    return std::sqrt(sum / static_cast<double>(o.size()));
  };
  const double of_bf16 = rmse(outputs({}, true)),
               of_e4m3 = rmse(outputs({.on = true, .per_token = true}, true)),
               of_int8 = rmse(outputs({.on = true, .per_token = true, .int8 = true}, true)),
               with_matrix =
                   rmse(outputs({.on = true, .per_token = true, .int8 = true, .hadamard = true}, true));
  EXPECT_LT(with_matrix, 2.2 * of_bf16);
  EXPECT_LT(with_matrix, 0.75 * of_int8);
  EXPECT_LT(of_int8, 0.6 * of_e4m3);
}

TEST(CpuDecode, WithoutAScaleTheSecondPartOfQueriesCounts) {
  DecodeCase c;
  c.dtype = TANDEM_FP32, c.head_dim = 8, c.value_dim = 24, c.qv = true, c.lengths = {5};
  DecodeTensors t(c);
  DecodeArgs own(t);
  std::size_t bytes = 0;
  ASSERT_EQ(tandem_decode_workspace(&own.args, &bytes), TANDEM_OK) << tandem_last_error();
  Workspace workspace(bytes);
  ASSERT_EQ(tandem_decode(&own.args, workspace.data(), bytes, nullptr), TANDEM_OK) << tandem_last_error();
  const std::vector<double> by_root_of_32 = t.o.values();
  t.setup.scale = 1 / std::sqrt(32.f);
  EXPECT_LE(largest_difference(by_root_of_32, plain_decode(t).o), 1e-6);
}

/// What a step gives that sees two keys, of scores `first` and twice that, and of values 1 and 2.
double heavier_of_two(DecodeCase c, float query, float first) {
  c.dtype = TANDEM_FP32, c.head_dim = 8, c.lengths = {2};
  c.qv = true;  // so that it goes key by key
  DecodeTensors t(c);
  t.q.fill(0), t.qv.fill(0), t.k_cache.fill(0);
  t.q.set(0, 0, 0, 0, query);
  for (std::int64_t key = 0; key < 2; ++key) {
    const DecodeTensors::Place at = t.place(0, key);
    t.k_cache.set(at.page, at.row, 0, 0, first * static_cast<float>(1 + key));
    for (std::int64_t e = 0; e < 8; ++e) t.v_cache.set(at.page, at.row, 0, e, static_cast<float>(1 + key));
  }
  run(t);
  return t.o.at(0, 0, 0, 0);
}

TEST(CpuDecode, ScoresThatFitHaveAnyFactors) {
  DecodeCase c;
  c.scale = 1e37f;
  EXPECT_EQ(heavier_of_two(c, 1e4f, 1e-30f), 2) << "the query times the scale is beyond fp32";
  c.softcap = 2e38f;
  EXPECT_EQ(heavier_of_two(c, 1e4f, 1e-30f), 2);
  EXPECT_EQ(heavier_of_two(c, 1, 40), 2) << "the score is beyond fp32, and its cap is not";
}

TEST(CpuDecode, LongCachesOfManyPages) {
  for (const std::int64_t page_size : {0, 1, 16, 256}) {
    DecodeCase c;
    c.q_heads = 8, c.kv_heads = 2, c.head_dim = 128, c.lengths = {4000, 33}, c.capacity = 4096;
    c.page_size = page_size, c.new_len = 1, c.rotary_dim = 128;
    expect_correct(c);
  }
}

TEST(CpuDecode, WithoutKeysOutputIsZeroAndLseMinusInfinity) {
  DecodeCase c;
  c.lengths = {0, -3}, c.q_heads = 4, c.q_len = 2;
  DecodeTensors t(c);
  run(t);
  for (const double o : t.o.values()) ASSERT_EQ(o, 0);
  for (const double lse : t.lse.values()) ASSERT_EQ(lse, -std::numeric_limits<double>::infinity());
}

TEST(CpuDecode, PagesThatDoNotExistCountAsZeros) {
  DecodeCase c;
  c.dtype = TANDEM_FP32, c.lengths = {30}, c.page_size = 16, c.new_len = 1, c.head_dim = 32;
  for (const std::int32_t wild : {-1, std::numeric_limits<std::int32_t>::min(), 1 << 30}) {
    DecodeTensors t(c);
    t.page_table[0] = wild;  // keys 0 to 15
    DecodeTensors oracle(c);
    oracle.page_table[0] = wild;
    const cpu::ReferenceValues expected = cpu::reference_decode_values(oracle.problem());
    run(t);
    expect_near(t.o.values(), expected.o, 1e-5);
    expect_near(t.lse.values(), expected.lse, 1e-5);

    t.page_table[1] = wild;  // and the place of the new token
    run(t);
    EXPECT_NEAR(t.lse.values()[0], std::log(31.0), 1e-6);
    for (const double o : t.o.values()) ASSERT_EQ(o, 0);
  }
}

/// All cells of the outputs and the cache.
std::vector<std::byte> bytes_of(const DecodeTensors& t) {
  std::vector<std::byte> bytes;
  for (const HostTensor* tensor : {&t.o, &t.lse, &t.k_cache, &t.v_cache, &t.k_scale, &t.v_scale})
    bytes.insert(bytes.end(), tensor->storage().begin(), tensor->storage().end());
  return bytes;
}

TEST(CpuDecode, SameBitsForEveryNumberOfThreads) {
  for (std::uint64_t seed = 900; seed < 912; ++seed) {
    SCOPED_TRACE(::testing::PrintToString(random_case(seed)));
    DecodeTensors one(random_case(seed));
    cpu::set_thread_count(1);
    run(one);
    for (const int count : {2, 3, 8}) {
      DecodeTensors several(random_case(seed));
      cpu::set_thread_count(count);
      run(several);
      EXPECT_EQ(bytes_of(one), bytes_of(several)) << count << " threads";
    }
  }
  cpu::set_thread_count(0);
}

TEST(CpuDecode, ASequenceHasTheSameBitsAloneAndInABatch) {
  DecodeCase c;
  c.q_heads = 8, c.kv_heads = 2, c.head_dim = 64, c.q_len = 2, c.new_len = 2, c.rotary_dim = 64;
  c.lengths.assign(150, 40);  // a batch that alone would make tiles taller
  c.lengths[3] = 17;
  DecodeTensors batch(c);
  run(batch);
  DecodeTensors single(c);
  core::DecodeProblem alone = single.problem();
  const std::int32_t offset = 3;
  for (core::Tensor* tensor : {&alone.q, &alone.k_new, &alone.v_new, &alone.o}) {
    tensor->data = core::row_of<core::Bf16>(*tensor, offset, 0, 0);
    tensor->shape[0] = 1;
  }
  alone.lse.data = core::row_of<float>(alone.lse, offset, 0, 0);
  alone.lse.shape[0] = 1;
  alone.lengths += offset;
  alone.batch_index = &offset;
  Workspace workspace(cpu::decode_workspace(alone));
  cpu::decode(alone, workspace.data());
  for (std::int64_t i = 0; i < c.q_len; ++i)
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      EXPECT_EQ(single.lse.at(3, i, h, 0), batch.lse.at(3, i, h, 0));
      for (std::int64_t e = 0; e < c.head_dim; ++e)
        ASSERT_EQ(single.o.at(3, i, h, e), batch.o.at(3, i, h, e));
    }
}

TEST(CpuDecode, WorkspaceQueryNeedsNoData) {
  DecodeCase c;
  c.lengths.assign(200, 10), c.rotary_dim = 64, c.q_heads = 4;
  const DecodeTensors t(c);
  core::DecodeProblem p = t.problem();
  const std::size_t bytes = cpu::decode_workspace(p);
  p.q.data = p.o.data = p.k_cache.data = nullptr;
  EXPECT_EQ(cpu::decode_workspace(p), bytes);
}

}  // namespace
}  // namespace tandem::test
