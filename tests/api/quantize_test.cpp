// tandem_quantize as callers see it: the right call, and every wrong one with its words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/api/mistake.h"
#include "tests/support/quantize_case.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using Args = tandem_quantize_args;

QuantizeCase small_quantisation() {
  return {.dtype = TANDEM_FP32, .batch = 2, .length = 37, .heads = 3, .head_dim = 16, .scale = {true, 16, 3}};
}

/// The layout that tandem_forward takes fastest, with every option.
TEST(Quantize, WritesEveryElementAndScaleAndNothingElse) {
  for (const tandem_backend backend : {TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
    QuantizeCase c = small_quantisation();
    c.by_column = c.hadamard = true;
    QuantizeTensors t(c);
    Args args = to_c(t.problem());
    args.backend = backend;
    ASSERT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(t.out.guards_intact() && t.scale.guards_intact());
    for (const double x : t.out.values()) ASSERT_FALSE(std::isnan(x));
    for (const double x : t.scale.values()) ASSERT_GT(x, 0);
  }
}

/// Tables of one position, which turn nothing.
const tandem_rotary* small_rotary(std::int64_t dim = 16, tandem_dtype dtype = TANDEM_FP32) {
  static const std::vector<float> cos(16, 1.f), sin(16, 0.f);
  static tandem_rotary rotary;
  rotary = {sizeof rotary, cos.data(), sin.data(), dtype, 1, dim, 0};
  return &rotary;
}

/// Of all entries and heads.
tandem_tensor small_shift() {
  static std::vector<float> zeros(64, 0.f);
  return {zeros.data(), TANDEM_FP32, {1, 1, 1, 16}, {0, 0, 0, 1}};
}

TEST(Quantize, RotaryEmbeddingComesFirst) {
  QuantizeCase c = small_quantisation();
  c.rotary_dim = 16, c.positions_given = true;
  QuantizeTensors turned(c), plain(c);
  tandem_rotary rotary;
  const Args args = to_c(turned.problem(), &rotary);
  ASSERT_EQ(args.rotary, &rotary);
  const Args without = to_c(plain.problem());
  // Turned in advance, as the definition says, in double arithmetic.
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.length; ++s)
      for (std::int64_t h = 0; h < c.heads; ++h)
        for (std::int64_t i = 0; i < 8; ++i) {
          const std::int64_t first = plain.first_positions[static_cast<std::size_t>(b)];
          const std::int64_t p = std::clamp<std::int64_t>(first + s, 0, QuantizeCase::positions - 1);
          const double x = plain.x.at(b, s, h, i), y = plain.x.at(b, s, h, i + 8);
          const double cos = plain.cos.at(0, 0, p, i), sin = plain.sin.at(0, 0, p, i);
          plain.x.set(b, s, h, i, static_cast<float>(x * cos - y * sin));
          plain.x.set(b, s, h, i + 8, static_cast<float>(x * sin + y * cos));
        }
  ASSERT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(tandem_quantize(&without, nullptr), TANDEM_OK) << tandem_last_error();
  const std::vector<double> a = turned.out.values(), b = plain.out.values();
  int differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differ += a[i] != b[i] ? 1 : 0;
  EXPECT_LE(1000 * differ, static_cast<int>(a.size())) << "but for ties that fp32 decides otherwise";
}

TEST(Quantize, WritesIntegersAndTwoTerms) {
  QuantizeCase integers = small_quantisation(), terms = small_quantisation();
  integers.to = TANDEM_INT8;
  terms.by_column = true, terms.terms = 2;
  for (const QuantizeCase& c : {integers, terms}) {
    QuantizeTensors t(c);
    const Args args = to_c(t.problem());
    ASSERT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(t.out.guards_intact() && t.scale.guards_intact());
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t s = 0; s < c.length; ++s)
        for (std::int64_t h = 0; h < c.heads; ++h)
          for (std::int64_t i = 0; i < c.head_dim; ++i) {
            const double x = t.x.at(b, s, h, i), unit = t.scale.at(b, s / 16, h, 0);
            const double lost = c.terms == 2 ? std::max(std::abs(x) / 256, unit * 0x1p-10) : unit / 2;
            ASSERT_NEAR(t.quantised(b, s, h, i), x, 1.001 * lost);
          }
  }
}

// Quantised q, k and v with their scales are the problem that tandem_forward solves: with Hadamard on q and k
// too.
void check_forward_of_quantised(tandem_dtype scores, bool by_column, int terms, double tolerance) {
  constexpr std::int64_t length = 40, d = 64;
  const auto quantised = [&](std::uint64_t seed, bool hadamard) {
    QuantizeCase c{.dtype = TANDEM_FP32,
                   .length = length,
                   .head_dim = d,
                   .by_column = by_column && !hadamard,
                   .terms = hadamard ? 1 : terms,
                   .to = hadamard ? scores : TANDEM_E4M3,
                   .scale = {true, 16, 1},
                   .hadamard = hadamard,
                   .seed = seed};
    QuantizeTensors t(c);
    t.x.fill_normal(seed);
    core::QuantizeProblem problem = t.problem();
    problem.seed = 99;  // one for q and k
    const Args args = to_c(problem);
    EXPECT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
    return t;
  };
  const QuantizeTensors q = quantised(1, true), k = quantised(2, true), v = quantised(3, false);
  HostTensor o(TANDEM_FP32, {1, length, 1, d}), exact(TANDEM_FP32, {1, length, 1, d});
  tandem_scales scales{sizeof(scales),
                       q.scale.view(),
                       k.scale.view(),
                       v.scale.view(),
                       16,
                       16,
                       16,
                       by_column ? TANDEM_VALUES_BY_COLUMN : TANDEM_VALUES_BY_KEY,
                       terms,
                       0,
                       {},
                       {}};
  tandem_forward_args args{};
  args.struct_size = sizeof(args);
  args.backend = TANDEM_BACKEND_REFERENCE;
  args.q = q.out.view(), args.k = k.out.view(), args.v = v.out.view(), args.o = o.view();
  args.scales = &scales;
  ASSERT_EQ(tandem_forward(&args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  args.q = q.x.view(), args.k = k.x.view(), args.v = v.x.view(), args.o = exact.view();
  args.scales = nullptr;
  ASSERT_EQ(tandem_forward(&args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  const std::vector<double> a = o.values(), b = exact.values();
  double squares = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  EXPECT_LT(std::sqrt(squares / size), tolerance);
}

// Each e4m3 element is off by up to a sixteenth, an integer by up to a 254th of the largest, and a value of
// two terms by a 256th.
TEST(Quantize, WhatItWritesIsWhatForwardTakes) {
  for (const bool by_column : {false, true}) check_forward_of_quantised(TANDEM_E4M3, by_column, 1, 0.06);
  check_forward_of_quantised(TANDEM_INT8, true, 1, 0.04);
  check_forward_of_quantised(TANDEM_INT8, true, 2, 0.015);
}

/// Root mean square of what o and lse of quantised q, k and v differ by from their originals', whose keys
/// have a large bias in some channels and whose values have a mean: with `shifts` these are taken off and
/// added back.
std::pair<double, double> errors_with_biases(tandem_dtype scores, bool shifts) {
  constexpr std::int64_t length = 200, d = 64;
  const auto case_of = [&](tandem_dtype to, bool by_column) {
    return QuantizeCase{.dtype = TANDEM_FP32,
                        .length = length,
                        .heads = 2,
                        .head_dim = d,
                        .by_column = by_column,
                        .to = to,
                        .scale = {true, 128, 2},
                        .hadamard = !by_column};
  };
  QuantizeTensors q(case_of(scores, false)), k(case_of(scores, false)), v(case_of(TANDEM_E4M3, true));
  HostTensor k_mean(TANDEM_FP32, {1, 1, 2, d}), v_mean(TANDEM_FP32, {1, 1, 2, d});
  HostTensor dots(TANDEM_FP32, {1, length, 2, 1}), exact(TANDEM_FP32, {1, length, 2, d});
  HostTensor o = exact, lse(TANDEM_FP32, {1, length, 2, 1}), exact_lse = lse;
  q.x.fill_normal(1), k.x.fill_normal(2), v.x.fill_normal(3, 0.3f);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < d; ++i) {
      const float bias = i % 8 == 0 ? 10.f : 0.f;
      k_mean.set(0, 0, h, i, bias), v_mean.set(0, 0, h, i, 1);
      for (std::int64_t s = 0; s < length; ++s) {
        k.x.set(0, s, h, i, static_cast<float>(k.x.at(0, s, h, i)) + bias);
        v.x.set(0, s, h, i, static_cast<float>(v.x.at(0, s, h, i)) + 1);
      }
    }
  Args of_q = to_c(q.problem()), of_k = to_c(k.problem()), of_v = to_c(v.problem());
  tandem_scales scales{};
  scales.struct_size = sizeof(scales);
  if (shifts) {
    of_k.shift = of_q.k_shift = k_mean.view(), of_q.q_dot_k_shift = dots.view(), of_v.shift = v_mean.view();
    scales.v_shift = v_mean.view(), scales.q_dot_k_shift = dots.view();
  }
  for (const Args* args : {&of_q, &of_k, &of_v})
    EXPECT_EQ(tandem_quantize(args, nullptr), TANDEM_OK) << tandem_last_error();
  scales.q = q.scale.view(), scales.k = k.scale.view(), scales.v = v.scale.view();
  scales.q_block = scales.k_block = scales.v_block = 128, scales.v_layout = TANDEM_VALUES_BY_COLUMN;
  tandem_forward_args args{};
  args.struct_size = sizeof(args);
  args.backend = TANDEM_BACKEND_REFERENCE;
  args.q = q.out.view(), args.k = k.out.view(), args.v = v.out.view();
  args.o = o.view(), args.lse = lse.view(), args.scales = &scales;
  EXPECT_EQ(tandem_forward(&args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  args.q = q.x.view(), args.k = k.x.view(), args.v = v.x.view();
  args.o = exact.view(), args.lse = exact_lse.view(), args.scales = nullptr;
  EXPECT_EQ(tandem_forward(&args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  const auto error = [](const HostTensor& a, const HostTensor& b) {
    const std::vector<double> x = a.values(), y = b.values();
    double squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
    return std::sqrt(squares / static_cast<double>(x.size()));
  };
  return {error(o, exact), error(lse, exact_lse)};
}

TEST(Quantize, ShiftsTakeTheErrorOfBiasesOutOfOutputsAndLse) {
  for (const tandem_dtype scores : {TANDEM_E4M3, TANDEM_INT8}) {
    const auto [o, lse] = errors_with_biases(scores, true);
    const auto [plain_o, plain_lse] = errors_with_biases(scores, false);
    EXPECT_LT(1.5 * o, plain_o);
    EXPECT_LT(1.5 * lse, plain_lse);
  }
}

TEST(Quantize, OfNothingWritesNothing) {
  for (int dimension = 0; dimension < 3; ++dimension) {
    QuantizeTensors t(small_quantisation());
    Args args = to_c(t.problem());
    args.x.shape[dimension] = args.out.shape[dimension] = 0;
    if (dimension != 1) args.scale.shape[dimension] = 0;
    if (dimension == 1) args.block = 0, args.scale.shape[1] = 1;
    EXPECT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
    std::vector<float> shift(64);  // whose products with nothing have no address
    args.k_shift = {shift.data(), TANDEM_FP32, {1, 1, 1, args.x.shape[3]}, {0, 0, 0, 1}};
    args.k_shift.shape[2] = args.x.shape[2];
    EXPECT_EQ(tandem_quantize(&args, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(t.out.untouched());
  }
}

using Mistake = test::Mistake<Args>;

class QuantizeMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(QuantizeMistakes, AreNamedAndLeaveTheOutputsAlone) {
  QuantizeTensors t(small_quantisation());
  Args args = to_c(t.problem());
  args.backend = TANDEM_BACKEND_CPU;
  expect_refused(GetParam(), args, [&args] { return tandem_quantize(&args, nullptr); });
  EXPECT_TRUE(t.out.untouched() && t.scale.untouched());
}

const std::vector<Mistake> mistakes = {
    {"Layout", [](Args& a) { store(a.layout, 3); }, {"layout is 3", "TANDEM_VALUES_BY_KEY"}},
    {"ScaleGiven", [](Args& a) { a.scale_given = 2; }, {"scale_given is 2", "0 or 1"}},
    {"RotaryByColumn",
     [](Args& a) { a.rotary = small_rotary(), a.layout = TANDEM_VALUES_BY_COLUMN; },
     {"rotary is given", "values are not rotated"}},
    {"ColumnsThatAreRotated",
     [](Args& a) { a.rotary = small_rotary(32); },
     {"rotary.dim is 32", "head dim, which is 16"}},
    {"TablesOfAnotherType",
     [](Args& a) { a.rotary = small_rotary(16, TANDEM_BF16); },
     {"rotary.dtype is 1 (bf16)", "x.dtype, which is 3 (fp32)"}},
    {"RotaryWithoutItsSize",
     [](Args& a) {
       static const tandem_rotary none{};
       a.rotary = &none;
     },
     {"rotary->struct_size is 0"}},
    {"Amplitude", [](Args& a) { a.amplitude = 0.5f; }, {"amplitude is 0.5", "from 1 to 448, or 0"}},
    {"AmplitudeBeyondTheFormat",
     [](Args& a) { a.amplitude = 449; },
     {"amplitude is 449", "from 1 to 448, or 0"}},
    {"AmplitudeOfGivenScales",
     [](Args& a) { a.amplitude = 16, a.scale_given = 1; },
     {"amplitude is 16, but scale_given is 1"}},
    {"AmplitudeOfIntegers",
     [](Args& a) { a.amplitude = 16, a.out.dtype = TANDEM_INT8; },
     {"amplitude is 16, but out.dtype is 5 (int8)"}},
    {"BestScale", [](Args& a) { a.best_scale = 2; }, {"best_scale is 2", "0 or 1"}},
    {"BestOfGivenScales",
     [](Args& a) { a.best_scale = a.scale_given = 1; },
     {"best_scale is 1, but scale_given is 1"}},
    {"BestScaleOfIntegers",
     [](Args& a) { a.best_scale = 1, a.out.dtype = TANDEM_INT8; },
     {"best_scale is 1, but out.dtype is 5 (int8)"}},
    {"BestScaleByColumn",
     [](Args& a) { a.best_scale = 1, a.layout = TANDEM_VALUES_BY_COLUMN; },
     {"best_scale is 1, but layout is TANDEM_VALUES_BY_COLUMN"}},
    {"TokensOfShift",
     [](Args& a) { a.shift = small_shift(), a.shift.shape[1] = 2; },
     {"shift.shape[1] (tokens) is 2", "has to be 1"}},
    {"BatchOfShift",
     [](Args& a) { a.shift = small_shift(), a.shift.shape[0] = 3; },
     {"shift.shape[0] (batch) is 3", "1 or x.shape[0], which is 2"}},
    {"HeadsOfShift",
     [](Args& a) { a.shift = small_shift(), a.shift.shape[2] = 2; },
     {"shift.shape[2] (heads) is 2", "a divisor of x.shape[2], which is 3"}},
    {"ColumnsOfShift",
     [](Args& a) { a.shift = small_shift(), a.shift.shape[3] = 8; },
     {"shift.shape[3] (head dim) is 8", "x.shape[3], which is 16"}},
    {"StrideOfShift", [](Args& a) { a.shift = small_shift(), a.shift.stride[3] = 2; }, {"shift.stride[3]"}},
    {"ShiftOfBf16",
     [](Args& a) { a.shift = small_shift(), a.shift.dtype = TANDEM_BF16; },
     {"shift.dtype is 1", "TANDEM_FP32"}},
    {"ShiftThatIsTheOutput",
     [](Args& a) { a.shift = small_shift(), a.shift.data = a.out.data; },
     {"shift.data", "overlap"}},
    {"KeysShiftWithoutProducts",
     [](Args& a) { a.k_shift = small_shift(); },
     {"q_dot_k_shift.data is NULL, but k_shift is given"}},
    {"ProductsWithoutKeysShift",
     [](Args& a) { a.q_dot_k_shift = small_shift(); },
     {"k_shift.data is NULL, but q_dot_k_shift is given"}},
    {"ProductsOfAnotherShape",
     [](Args& a) { a.k_shift = a.q_dot_k_shift = small_shift(); },
     {"q_dot_k_shift.shape[0]"}},
    {"KeysShiftByColumn",
     [](Args& a) { a.k_shift = a.q_dot_k_shift = small_shift(), a.layout = TANDEM_VALUES_BY_COLUMN; },
     {"k_shift is given, but layout is TANDEM_VALUES_BY_COLUMN"}},
    {"Hadamard", [](Args& a) { a.hadamard = -1; }, {"hadamard is -1"}},
    {"InputOf8Bits", [](Args& a) { a.x.dtype = TANDEM_E4M3; }, {"x.dtype is 4 (e4m3)", "TANDEM_FP32"}},
    {"OutputOfBf16", [](Args& a) { a.out.dtype = TANDEM_BF16; }, {"out.dtype is 1 (bf16)", "TANDEM_E4M3"}},
    {"IntegersByColumn",
     [](Args& a) { a.out.dtype = TANDEM_INT8, a.layout = TANDEM_VALUES_BY_COLUMN; },
     {"out.dtype is 5 (int8)", "TANDEM_VALUES_BY_COLUMN", "values are TANDEM_E4M3"}},
    {"Terms", [](Args& a) { a.terms = -1; }, {"terms is -1", "1 or 2"}},
    {"TwoTermsByKey", [](Args& a) { a.terms = 2; }, {"terms is 2", "TANDEM_VALUES_BY_COLUMN"}},
    {"TwoTermsOfOne",
     [](Args& a) { a.terms = 2, a.layout = TANDEM_VALUES_BY_COLUMN, a.out.shape[1] = 16; },
     {"out.shape[1] is 16", "for each term, which is 32"}},
    {"ScalesOfBf16", [](Args& a) { a.scale.dtype = TANDEM_BF16; }, {"scale.dtype is 1", "TANDEM_FP32"}},
    {"HeadDim", [](Args& a) { a.x.shape[3] = 12; }, {"x.shape[3] (head dim) is 12", "multiple of 8"}},
    {"HeadDimOfHadamard",
     [](Args& a) { a.x.shape[3] = a.out.shape[3] = 24, a.hadamard = 1; },
     {"is 24", "power of two"}},
    {"LengthOfOutput", [](Args& a) { a.out.shape[1] = 36; }, {"out.shape[1]", "is 36", "37"}},
    {"RowsByColumn",
     [](Args& a) { a.layout = TANDEM_VALUES_BY_COLUMN; },
     {"out.shape[1] is 37", "which is 16"}},
    {"Block", [](Args& a) { a.block = -5; }, {"block is -5"}},
    {"Blocks", [](Args& a) { a.block = 32; }, {"scale.shape[1] (blocks) is 3", "has to be 2"}},
    {"NoMemoryForScales", [](Args& a) { a.scale.data = nullptr; }, {"scale.data is NULL"}},
    {"NoScalesForHeads",
     [](Args& a) { a.scale.data = nullptr, a.scale.shape[2] = 0; },
     {"scale.data is NULL"}},
    {"OutputOverInput", [](Args& a) { a.out.data = a.x.data; }, {"out.data", "overlap"}},
};
INSTANTIATE_TEST_SUITE_P(Common, QuantizeMistakes, ::testing::ValuesIn(common_mistakes<Args>()), by_name);
INSTANTIATE_TEST_SUITE_P(All, QuantizeMistakes, ::testing::ValuesIn(mistakes), by_name);

}  // namespace
}  // namespace tandem::test
