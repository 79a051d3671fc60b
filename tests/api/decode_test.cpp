// What tandem_decode promises where nothing is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "tests/api/request.h"

namespace tandem::test {
namespace {

TEST(Decode, FasterBackendAgreesWithTheReferenceForAnyStep) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < std::uint64_t{first} + 60; ++seed) {
    DecodeCase c = random_decode_case(seed, TANDEM_FP32, static_cast<std::int64_t>(8 + seed % 32 * 8));
    Random random(seed);
    for (Layout* layout : {&c.cache, &c.o, &c.lse_layout}) *layout = random_layout(random);
    SCOPED_TRACE(::testing::PrintToString(c));
    DecodeRequest fast(c), reference(c);
    const DecodeTensors before(c);
    fast.args.backend = TANDEM_BACKEND_AUTO;
    reference.args.backend = TANDEM_BACKEND_REFERENCE;
    ASSERT_EQ(fast.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(reference.run(), TANDEM_OK) << tandem_last_error();
    const auto o = fast.tensors.o.values(), expected = reference.tensors.o.values();
    for (std::size_t j = 0; j < o.size(); ++j) ASSERT_NEAR(o[j], expected[j], 1e-4);
    EXPECT_EQ(fast.tensors.cache_failure(before), "");
    EXPECT_EQ(reference.tensors.cache_failure(before), "");
    EXPECT_TRUE(fast.tensors.o.guards_intact() && fast.tensors.lse.guards_intact());
  }
}

/// Tokens one by one, or several at a time, through a cache give what one causal forward gives.
TEST(Decode, TokenByTokenGivesWhatTheForwardGives) {
  constexpr std::int64_t tokens = 40;
  ForwardCase whole{.dtype = TANDEM_FP32, .q_len = tokens, .k_len = tokens, .q_heads = 4, .kv_heads = 2};
  whole.head_dim = 32, whole.mask = core::Mask::causal();
  Request forward(whole);
  ASSERT_EQ(forward.run(), TANDEM_OK) << tandem_last_error();
  for (const std::int64_t step : {1, 4, 8}) {
    DecodeCase c{.dtype = TANDEM_FP32, .q_len = step, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
    c.new_len = step, c.lengths = {0}, c.capacity = tokens, c.page_size = 8, c.mask = core::Mask::causal();
    DecodeRequest decode(c);
    decode.tensors.page_table = {4, 0, 3, 1, 2};
    decode.cache.page_table = decode.tensors.page_table.data();
    std::int32_t length = 0;
    decode.cache.lengths = &length;
    for (; length < tokens; length += static_cast<std::int32_t>(step)) {
      decode.args.q.data = core::row_of<float>(forward.args.q, 0, length, 0);
      decode.args.k_new.data = core::row_of<float>(forward.args.k, 0, length, 0);
      decode.args.v_new.data = core::row_of<float>(forward.args.v, 0, length, 0);
      for (tandem_tensor* tensor : {&decode.args.q, &decode.args.k_new, &decode.args.v_new}) {
        const tandem_tensor& source = tensor == &decode.args.q       ? forward.args.q
                                      : tensor == &decode.args.k_new ? forward.args.k
                                                                     : forward.args.v;
        std::copy(source.stride, source.stride + 4, tensor->stride);
      }
      ASSERT_EQ(decode.run(), TANDEM_OK) << tandem_last_error();
      for (std::int64_t i = 0; i < step; ++i)
        for (std::int64_t h = 0; h < 4; ++h) {
          ASSERT_NEAR(decode.tensors.lse.at(0, i, h, 0), forward.tensors.lse.at(0, length + i, h, 0), 1e-5);
          for (std::int64_t e = 0; e < 32; ++e)
            ASSERT_NEAR(decode.tensors.o.at(0, i, h, e), forward.tensors.o.at(0, length + i, h, e), 1e-5);
        }
    }
  }
}

class EmptyStep : public ::testing::TestWithParam<tandem_backend> {};

TEST_P(EmptyStep, WithoutABatchWritesNothingAndNeedsNoMemory) {
  DecodeRequest request;
  request.args.backend = GetParam();
  for (tandem_tensor* tensor : {&request.args.q, &request.args.k_new, &request.args.v_new, &request.args.o})
    tensor->shape[0] = 0;
  request.args.lse.shape[0] = 0;
  request.args.q.data = request.args.o.data = nullptr;
  request.cache.lengths = nullptr;
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &bytes), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(tandem_decode(&request.args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(request.outputs_untouched());
}

TEST_P(EmptyStep, MayAppendNoTokensToKeysThatValuesLieIn) {
  DecodeRequest request;
  request.args.backend = GetParam();
  request.args.rotary = nullptr;
  request.cache.v = request.cache.k, request.args.v_new = request.args.k_new;
  request.cache.v.shape[3] = request.args.v_new.shape[3] = request.args.o.shape[3] = 8;
  request.args.k_new.shape[1] = request.args.v_new.shape[1] = 0;
  EXPECT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
}

INSTANTIATE_TEST_SUITE_P(OnTheHost, EmptyStep,
                         ::testing::Values(TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU,
                                           TANDEM_BACKEND_REFERENCE));

TEST(Decode, WithoutNewTokensLeavesTheCacheAlone) {
  DecodeRequest request;
  request.args.k_new = request.args.v_new = {};
  request.args.k_new.shape[0] = -99;  // ignored with all the rest
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_FALSE(request.tensors.o.untouched());
  request.tensors.o.poison(), request.tensors.lse.poison();
  EXPECT_TRUE(request.outputs_untouched());
}

/// One token appended to an empty cache of 8 bits whose rows have their scales behind them.
struct InlineCache {
  static constexpr std::int64_t capacity = 8, d = 16, row = d + 16;  // a row, its scale and a gap
  alignas(16) std::byte k[capacity * row] = {}, v[capacity * row] = {};
  float q[d] = {}, key[d] = {}, value[d] = {}, o[d] = {};
  std::int32_t length = 0;
  tandem_cache_scales scales{};

  static float* scale(std::byte* rows, std::int64_t at) {
    return reinterpret_cast<float*>(rows + at * row + d);
  }
  tandem_status run(tandem_dtype dtype) {
    const auto dense = [](float* x) { return tandem_tensor{x, TANDEM_FP32, {1, 1, 1, d}, {d, d, d, 1}}; };
    const auto cached = [dtype](std::byte* rows) {
      return tandem_tensor{rows, dtype, {1, capacity, 1, d}, {capacity * row, row, row, 1}};
    };
    const auto scales_of = [](std::byte* rows) {
      return tandem_tensor{
          scale(rows, 0), TANDEM_FP32, {1, capacity, 1, 1}, {capacity * row / 4, row / 4, row / 4, 1}};
    };
    const tandem_cache cache{sizeof(cache), cached(k), cached(v), nullptr, 0, 0, &length, nullptr};
    if (scales.struct_size == 0) scales.struct_size = sizeof(scales);
    scales.k = scales_of(k), scales.v = scales_of(v), scales.per_token = 1;
    tandem_decode_args args{};
    args.struct_size = sizeof(args);
    args.backend = TANDEM_BACKEND_REFERENCE;
    args.q = dense(q), args.k_new = dense(key), args.v_new = dense(value), args.o = dense(o);
    args.cache = &cache, args.scales = &scales;
    return tandem_decode(&args, nullptr, 0, nullptr);
  }
};

TEST(Decode, TakesAnEightBitCacheWithItsScalesBetweenTheRows) {
  for (const tandem_dtype dtype : {TANDEM_E4M3, TANDEM_INT8}) {
    InlineCache step;
    step.value[5] = 3, step.key[0] = 1016;
    ASSERT_EQ(step.run(dtype), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(*step.scale(step.k, 0), dtype == TANDEM_INT8 ? 8 : 4) << "448 times 2 is less than 1016";
    EXPECT_FLOAT_EQ(*step.scale(step.v, 0), dtype == TANDEM_INT8 ? 3 / 127.f : 0x1p-7f);
    EXPECT_EQ(*step.scale(step.k, 1), 0);
    EXPECT_EQ(static_cast<int>(step.v[5]), dtype == TANDEM_INT8 ? 127 : 0x7c) << "384";
    EXPECT_FLOAT_EQ(step.o[5], 3);
  }
}

TEST(Decode, AppendsKeysTimesTheHadamardMatrixWhereScalesSaySo) {
  InlineCache step;
  step.key[3] = -8;
  step.scales.hadamard = 1, step.scales.seed = 5;
  ASSERT_EQ(step.run(TANDEM_INT8), TANDEM_OK) << tandem_last_error();
  EXPECT_FLOAT_EQ(*step.scale(step.k, 0), 2 / 127.f) << "the outlier, spread over 16 columns";
  for (int e = 0; e < InlineCache::d; ++e) EXPECT_EQ(std::abs(static_cast<std::int8_t>(step.k[e])), 127) << e;
}

TEST(Decode, ScalesOfAnOlderVersionHaveNoHadamardMatrix) {
  InlineCache step;
  step.key[3] = -8;
  step.scales.struct_size = offsetof(tandem_cache_scales, seed);
  step.scales.hadamard = 7, step.scales.seed = 5;
  ASSERT_EQ(step.run(TANDEM_INT8), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(static_cast<std::int8_t>(step.k[3]), -127);
  EXPECT_EQ(static_cast<std::int8_t>(step.k[4]), 0);
}

TEST(Decode, MayReadACacheThatSequencesShare) {
  DecodeRequest request;
  request.args.k_new = request.args.v_new = {};
  request.cache.page_table_stride = 0;  // all have the pages of the longest
  const std::int32_t index[] = {0, 0};
  request.cache.batch_index = index;
  request.cache.page_table += request.tensors.batch_index[0] * request.tensors.page_table_stride;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  for (const double o : request.tensors.o.values()) ASSERT_FALSE(std::isnan(o));
}

TEST(Decode, TheHostNeedsNoPlanAndMakesNone) {
  DecodeRequest request;
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_decode_plan_size(&request.args, &bytes), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(tandem_decode_plan(&request.args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
}

TEST(Decode, QueriesNeedNoDataButOneForAuto) {
  DecodeRequest request;
  std::size_t with_data = 0, without = 0;
  ASSERT_EQ(tandem_decode_workspace(&request.args, &with_data), TANDEM_OK);
  request.args.q.data = request.args.o.data = request.cache.k.data = request.cache.v.data = nullptr;
  request.cache.lengths = nullptr;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &without), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(with_data, without);
  request.args.backend = TANDEM_BACKEND_AUTO;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &without), TANDEM_OK) << "new keys are there";
  request.args.k_new = request.args.v_new = request.args.lse = {};
  request.args.rotary = nullptr, request.args.sinks = nullptr;
  request.cache.batch_index = request.cache.page_table = nullptr;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &without), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), ::testing::HasSubstr("q.data is NULL"));
}

TEST(Decode, LeavesLseAloneWhereItIsNotWanted) {
  DecodeRequest request;
  request.args.lse = {};
  request.args.lse.shape[0] = -99;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(request.tensors.lse.untouched());
  EXPECT_FALSE(request.tensors.o.untouched());
}

}  // namespace
}  // namespace tandem::test
