// 8 bits through the C++ interface.
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include <tandem/eight_bit.hpp>

#include "core/dtype.h"

namespace tandem::test {
namespace {

constexpr Shape shape{.batch = 2, .sequence = 200, .heads = 3, .head_dim = 64};
constexpr Shape scale_shape{.batch = 2, .sequence = 2, .heads = 3, .head_dim = 1};
constexpr Shape column_shape{.batch = 2, .sequence = 64, .heads = 3, .head_dim = 208};

std::size_t count(const Shape& s) {
  return static_cast<std::size_t>(s.batch * s.sequence * s.heads * s.head_dim);
}

/// q, k or v in 8 bits, made from normal numbers.
struct Quantised {
  std::vector<float> x = std::vector<float>(count(shape));
  std::vector<E4m3> bits;
  std::vector<float> scale = std::vector<float>(count(scale_shape));

  Quantised(std::mt19937& random, const Shape& of_bits) : bits(count(of_bits)) {
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
  }
  Tensor<const float> values() const { return Tensor<const float>::bshd(x.data(), shape); }
  Tensor<float> scales() { return Tensor<float>::bshd(scale.data(), scale_shape); }
};

/// Of the blocks that quantising has by default, and of values by column.
Scales scales_of(Quantised& q, Quantised& k, Quantised& v) {
  return {.q = q.scales(), .k = k.scales(), .v = v.scales(), .v_layout = TANDEM_VALUES_BY_COLUMN};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

TEST(CppEightBit, QuantisedInputsGiveTheOutputOfTheirOriginalsButForRounding) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Quantised q(random, shape), k(random, shape), v(random, column_shape);
  const QuantizeOptions rows{.hadamard_seed = 7}, columns{.layout = TANDEM_VALUES_BY_COLUMN};
  const auto q8 = Tensor<E4m3>::bshd(q.bits.data(), shape), k8 = Tensor<E4m3>::bshd(k.bits.data(), shape);
  const auto v8 = Tensor<E4m3>::bshd(v.bits.data(), column_shape);
  for (const Status& status : {attention_quantize(q.values(), q8, q.scales(), rows),
                               attention_quantize(k.values(), k8, k.scales(), rows),
                               attention_quantize(v.values(), v8, v.scales(), columns)})
    ASSERT_TRUE(status) << status.message();

  std::vector<float> o(count(shape), NAN), expected(count(shape));
  const EightBitInputs inputs{q8, k8, v8, scales_of(q, k, v)};
  const ForwardOptions options{.mask = Mask::causal()};
  std::size_t bytes = 0;
  ASSERT_TRUE(attention_forward_workspace(inputs, Tensor<float>::bshd(o.data(), shape), options, bytes));
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  ForwardOptions with_workspace = options;
  with_workspace.workspace = std::as_writable_bytes(std::span(workspace));
  const Status status = attention_forward(inputs, Tensor<float>::bshd(o.data(), shape), with_workspace);
  ASSERT_TRUE(status) << status.message();
  const Status of_originals =
      attention_forward(q.values(), k.values(), v.values(), Tensor<float>::bshd(expected.data(), shape),
                        {.mask = Mask::causal(), .backend = TANDEM_BACKEND_REFERENCE});
  ASSERT_TRUE(of_originals) << of_originals.message();
  EXPECT_LT(largest_difference(o, expected), 0.5);
  EXPECT_GT(largest_difference(o, expected), 1e-3);
}

/// Of each column over the tokens: batch, 1, heads, d.
std::vector<float> means(const std::vector<float>& x) {
  const auto of_entry = static_cast<std::size_t>(shape.heads * shape.head_dim);
  std::vector<float> mean(of_entry * static_cast<std::size_t>(shape.batch));
  const std::size_t tokens = x.size() / mean.size();
  for (std::size_t i = 0; i < x.size(); ++i)
    mean[i / (tokens * of_entry) * of_entry + i % of_entry] += x[i] / static_cast<float>(tokens);
  return mean;
}

TEST(CppEightBit, MeansThatAreTakenOffComeBackInOutputAndLse) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Quantised q(random, shape), k(random, shape), v(random, column_shape);
  for (std::size_t i = 0; i < count(shape); i += 2) k.x[i] += 10, v.x[i] -= 10;
  const std::vector<float> k_mean = means(k.x), v_mean = means(v.x);
  constexpr Shape mean_shape{.batch = 2, .sequence = 1, .heads = 3, .head_dim = 64};
  constexpr Shape row_shape{.batch = 2, .sequence = 200, .heads = 3, .head_dim = 1};
  std::vector<float> dots(count(row_shape), NAN);
  const auto k_shift = Tensor<const float>::bshd(k_mean.data(), mean_shape),
             v_shift = Tensor<const float>::bshd(v_mean.data(), mean_shape);
  const auto of_rows = Tensor<float>::bshd(dots.data(), row_shape);
  const auto q8 = Tensor<E4m3>::bshd(q.bits.data(), shape), k8 = Tensor<E4m3>::bshd(k.bits.data(), shape);
  const auto v8 = Tensor<E4m3>::bshd(v.bits.data(), column_shape);
  for (const Status& status :
       {attention_quantize(q.values(), q8, q.scales(),
                           {.hadamard_seed = 7, .k_shift = k_shift, .q_dot_k_shift = of_rows}),
        attention_quantize(k.values(), k8, k.scales(), {.hadamard_seed = 7, .shift = k_shift}),
        attention_quantize(v.values(), v8, v.scales(),
                           {.layout = TANDEM_VALUES_BY_COLUMN, .shift = v_shift})})
    ASSERT_TRUE(status) << status.message();

  std::vector<float> o(count(shape), NAN), lse(count(row_shape), NAN), expected(o), expected_lse(lse);
  Scales scales = scales_of(q, k, v);
  scales.v_shift = v_shift;
  scales.q_dot_k_shift = Tensor<const float>(of_rows);
  const EightBitInputs inputs{q8, k8, v8, scales};
  const auto options = [&](std::vector<float>& to) {
    return ForwardOptions{.lse = Tensor<float>::bshd(to.data(), row_shape),
                          .backend = TANDEM_BACKEND_REFERENCE};
  };
  const Status status = attention_forward(inputs, Tensor<float>::bshd(o.data(), shape), options(lse));
  ASSERT_TRUE(status) << status.message();
  ASSERT_TRUE(attention_forward(q.values(), k.values(), v.values(),
                                Tensor<float>::bshd(expected.data(), shape), options(expected_lse)));
  EXPECT_LT(largest_difference(o, expected), 0.3);
  EXPECT_LT(largest_difference(lse, expected_lse), 0.3);
}

TEST(CppEightBit, ScoreAmplitudesAreNumbersOfE4m3WithWhichFp16HoldsEveryScore) {
  for (std::int64_t head_dim = 1; head_dim <= 256; ++head_dim) {
    float most = 0;  // by trying all
    for (std::uint8_t bits = 0x38; bits < 0x7f; ++bits) {
      const auto x = static_cast<float>(core::E4m3{bits});
      if (x == std::floor(x) && static_cast<float>(head_dim) * x * x <= 65504) most = x;
    }
    EXPECT_EQ(score_amplitude(head_dim), most) << head_dim;
  }
}

TEST(CppEightBit, IntegersAndTwoTermsAreFiner) {
  std::mt19937 random(5);
  const Shape two_columns{.batch = 2, .sequence = 128, .heads = 3, .head_dim = 208};
  Quantised q(random, shape), k(random, shape), v(random, two_columns);
  std::vector<std::int8_t> q_bits(count(shape)), k_bits(count(shape));
  const QuantizeOptions rows{.hadamard_seed = 7}, columns{.layout = TANDEM_VALUES_BY_COLUMN, .terms = 2};
  const auto q8 = Tensor<std::int8_t>::bshd(q_bits.data(), shape),
             k8 = Tensor<std::int8_t>::bshd(k_bits.data(), shape);
  const auto v8 = Tensor<E4m3>::bshd(v.bits.data(), two_columns);
  for (const Status& status : {attention_quantize(q.values(), q8, q.scales(), rows),
                               attention_quantize(k.values(), k8, k.scales(), rows),
                               attention_quantize(v.values(), v8, v.scales(), columns)})
    ASSERT_TRUE(status) << status.message();
  Scales scales = scales_of(q, k, v);
  scales.v_terms = 2;
  const Int8Inputs inputs{q8, k8, v8, scales};
  const ForwardOptions options{.backend = TANDEM_BACKEND_REFERENCE};
  std::vector<float> o(count(shape), NAN), expected(count(shape));
  const Status status = attention_forward(inputs, Tensor<float>::bshd(o.data(), shape), options);
  ASSERT_TRUE(status) << status.message();
  ASSERT_TRUE(attention_forward(q.values(), k.values(), v.values(),
                                Tensor<float>::bshd(expected.data(), shape), options));
  EXPECT_LT(largest_difference(o, expected), 0.03);
}

TEST(CppEightBit, GivenScalesAreReadAndFoundOnesWritten) {
  std::mt19937 random(3);
  Quantised x(random, shape);
  const auto x8 = Tensor<E4m3>::bshd(x.bits.data(), shape);
  for (float& scale : x.scale) scale = 1024;
  ASSERT_TRUE(attention_quantize_by(x.values(), x8, Tensor<const float>(x.scales())));
  for (const E4m3 element : x.bits) EXPECT_LE(element.bits & 0x7f, 2);  // nearly nothing is left: 5 / 1024
  ASSERT_TRUE(attention_quantize(x.values(), x8, x.scales()));
  for (const float scale : x.scale) EXPECT_LE(scale, 0x1p-6f);
}

/// Of what elements stand for, each times the scale of its row or of its block, to what they were.
double squared_error(const Quantised& x, const std::vector<float>& scale, bool of_rows) {
  const auto row = static_cast<std::size_t>(shape.heads * shape.head_dim),
             head = static_cast<std::size_t>(shape.head_dim), heads = static_cast<std::size_t>(shape.heads);
  const auto length = static_cast<std::size_t>(shape.sequence), blocks = (length + 127) / 128;
  double sum = 0;
  for (std::size_t i = 0; i < x.bits.size(); ++i) {
    const std::size_t token = i / row, own_head = i % row / head;
    const std::size_t block = token / length * blocks + token % length / 128;
    const float unit = scale[(of_rows ? token : block) * heads + own_head];
    sum += std::pow(static_cast<double>(static_cast<float>(core::E4m3{x.bits[i].bits}) * unit - x.x[i]), 2);
  }
  return sum;
}

TEST(CppEightBit, EachQueryMayHaveItsBestScale) {
  std::mt19937 random(11);
  Quantised q(random, shape), k(random, shape), v(random, column_shape);
  constexpr Shape row_scales{
      .batch = shape.batch, .sequence = shape.sequence, .heads = shape.heads, .head_dim = 1};
  std::vector<float> scale(count(row_scales), NAN), o(count(shape), NAN), expected(count(shape));
  const auto q8 = Tensor<E4m3>::bshd(q.bits.data(), shape), k8 = Tensor<E4m3>::bshd(k.bits.data(), shape);
  const auto v8 = Tensor<E4m3>::bshd(v.bits.data(), column_shape);
  const auto q_scale = Tensor<float>::bshd(scale.data(), row_scales);
  ASSERT_TRUE(attention_quantize(q.values(), q8, q.scales()));
  const double of_blocks = squared_error(q, q.scale, false);
  for (const Status& status :
       {attention_quantize(q.values(), q8, q_scale, {.block = 1, .best_scale = true}),
        attention_quantize(k.values(), k8, k.scales()),
        attention_quantize(v.values(), v8, v.scales(), {.layout = TANDEM_VALUES_BY_COLUMN})})
    ASSERT_TRUE(status) << status.message();
  EXPECT_LT(squared_error(q, scale, true), 0.95 * of_blocks);

  Scales scales = scales_of(q, k, v);
  scales.q = Tensor<const float>(q_scale), scales.q_block = 1;
  const ForwardOptions options{.backend = TANDEM_BACKEND_REFERENCE};
  const Status status =
      attention_forward(EightBitInputs{q8, k8, v8, scales}, Tensor<float>::bshd(o.data(), shape), options);
  ASSERT_TRUE(status) << status.message();
  ASSERT_TRUE(attention_forward(q.values(), k.values(), v.values(),
                                Tensor<float>::bshd(expected.data(), shape), options));
  EXPECT_LT(largest_difference(o, expected), 0.3);
}

TEST(CppEightBit, RotaryAndFirstPositionsReachTheLibrary) {
  std::mt19937 random(5);
  Quantised x(random, shape), expected(random, shape);
  constexpr std::int64_t positions = 300, dim = 32;
  std::vector<float> cos(positions * dim / 2), sin(cos.size());
  for (std::size_t i = 0; i < cos.size(); ++i)
    cos[i] = std::cos(static_cast<float>(i)), sin[i] = std::sin(static_cast<float>(i));
  const std::int32_t first[] = {0, 70};
  const tandem_rotary c_rotary{sizeof c_rotary, cos.data(), sin.data(), TANDEM_FP32, positions, dim, 1};
  tandem_quantize_args args{};
  args.struct_size = sizeof args, args.block = 128;
  args.x = x.values().c_tensor(), args.scale = expected.scales().c_tensor();
  args.out = Tensor<E4m3>::bshd(expected.bits.data(), shape).c_tensor();
  args.rotary = &c_rotary, args.first_positions = first;
  ASSERT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();

  const Status status = attention_quantize(
      x.values(), Tensor<E4m3>::bshd(x.bits.data(), shape), x.scales(),
      {.rotary = Rotary::interleaved(cos.data(), sin.data(), positions, dim), .first_positions = first});
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(x.scale, expected.scale);
  for (std::size_t i = 0; i < x.bits.size(); ++i) ASSERT_EQ(x.bits[i].bits, expected.bits[i].bits) << i;
}

TEST(CppEightBit, AStepAppendsToACacheAndAttendsToWhatItStandsFor) {
  constexpr Shape tokens{.batch = 2, .sequence = 1, .heads = 3, .head_dim = 64};
  std::vector<float> x(count(tokens), 1.f), o(count(tokens), NAN);
  std::vector<E4m3> k(count(shape)), v(count(shape));
  constexpr Shape token_scales{.batch = 2, .sequence = 200, .heads = 3, .head_dim = 1};
  std::vector<float> k_scale(count(token_scales), NAN), v_scale(count(token_scales), NAN);
  const std::int32_t lengths[] = {0, 0};
  const EightBitCache cache{.cache = {.k = Tensor<E4m3>::bshd(k.data(), shape),
                                      .v = Tensor<E4m3>::bshd(v.data(), shape),
                                      .lengths = lengths},
                            .k_scale = Tensor<float>::bshd(k_scale.data(), token_scales),
                            .v_scale = Tensor<float>::bshd(v_scale.data(), token_scales),
                            .per_token = true};
  const auto q = Tensor<const float>::bshd(x.data(), tokens);
  const auto out = Tensor<float>::bshd(o.data(), tokens);
  DecodeOptions<float> options{.append = NewTokens<float>{q, q}};
  std::size_t bytes = 0, plan_bytes = 1;
  ASSERT_TRUE(attention_decode_workspace(q, cache, out, options, bytes));
  ASSERT_TRUE(attention_decode_plan_size(q, cache, out, options, plan_bytes));
  EXPECT_EQ(plan_bytes, 0u);
  EXPECT_TRUE(attention_decode_plan(q, cache, out, options, {}));
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace));
  const Status status = attention_decode(q, cache, out, options);
  ASSERT_TRUE(status) << status.message();
  for (const float element : o) EXPECT_EQ(element, 1.f);
  EXPECT_EQ(k_scale[0], 0x1p-8f);
  EXPECT_EQ(k[0].bits, 0x78) << "256";
}

TEST(CppEightBit, AStepOverACacheOfInt8TakesKeysTimesAHadamardMatrix) {
  constexpr Shape tokens{.batch = 1, .sequence = 1, .heads = 1, .head_dim = 64};
  std::vector<float> x(count(tokens)), o(count(tokens), NAN);
  x[9] = 8;
  constexpr Shape room{.batch = 1, .sequence = 20, .heads = 1, .head_dim = 64};
  std::vector<std::int8_t> k(count(room)), v(count(room));
  const std::int32_t lengths[] = {0};
  float scale = 1 / 64.f;
  const auto scales = Tensor<float>::bshd(&scale, {1, 1, 1, 1});
  const Int8Cache cache{.cache = {.k = Tensor<std::int8_t>::bshd(k.data(), room),
                                  .v = Tensor<std::int8_t>::bshd(v.data(), room),
                                  .lengths = lengths},
                        .k_scale = scales,
                        .v_scale = Tensor<float>::bshd(&x[9], {1, 1, 1, 1}),
                        .hadamard_seed = 3};
  const auto q = Tensor<const float>::bshd(x.data(), tokens);
  DecodeOptions<float> options{.append = NewTokens<float>{q, q}};
  std::size_t bytes = 0;
  ASSERT_TRUE(attention_decode_workspace(q, cache, Tensor<float>::bshd(o.data(), tokens), options, bytes));
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace));
  const Status status = attention_decode(q, cache, Tensor<float>::bshd(o.data(), tokens), options);
  ASSERT_TRUE(status) << status.message();
  for (std::size_t e = 0; e < 64; ++e) EXPECT_EQ(std::abs(k[e]), 64) << "8 over the root of 64 columns";
  EXPECT_EQ(v[9], 1);
  EXPECT_EQ(o[9], 8);
}

}  // namespace
}  // namespace tandem::test
