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

// Quantised q, k and v with their scales are the problem that tandem_forward solves: with Hadamard on q and k
// too.
TEST(Quantize, WhatItWritesIsWhatForwardTakes) {
  constexpr std::int64_t length = 40, d = 64;
  const auto quantised = [&](std::uint64_t seed, bool hadamard, bool by_column) {
    QuantizeCase c{.dtype = TANDEM_FP32,
                   .length = length,
                   .head_dim = d,
                   .by_column = by_column,
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
  for (const bool by_column : {false, true}) {
    const QuantizeTensors q = quantised(1, true, false), k = quantised(2, true, false),
                          v = quantised(3, false, by_column);
    HostTensor o(TANDEM_FP32, {1, length, 1, d}), exact(TANDEM_FP32, {1, length, 1, d});
    tandem_scales scales{sizeof(scales),
                         q.scale.view(),
                         k.scale.view(),
                         v.scale.view(),
                         16,
                         16,
                         16,
                         by_column ? TANDEM_VALUES_BY_COLUMN : TANDEM_VALUES_BY_KEY};
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
    EXPECT_LT(std::sqrt(squares / size), 0.06);  // each element is off by up to a sixteenth
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
    {"Hadamard", [](Args& a) { a.hadamard = -1; }, {"hadamard is -1"}},
    {"InputOf8Bits", [](Args& a) { a.x.dtype = TANDEM_E4M3; }, {"x.dtype is 4 (e4m3)", "TANDEM_FP32"}},
    {"OutputOfBf16", [](Args& a) { a.out.dtype = TANDEM_BF16; }, {"out.dtype is 1 (bf16)", "TANDEM_E4M3"}},
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
    {"OutputOverInput", [](Args& a) { a.out.data = a.x.data; }, {"out.data", "overlap"}},
};
INSTANTIATE_TEST_SUITE_P(Common, QuantizeMistakes, ::testing::ValuesIn(common_mistakes<Args>()), by_name);
INSTANTIATE_TEST_SUITE_P(All, QuantizeMistakes, ::testing::ValuesIn(mistakes), by_name);

}  // namespace
}  // namespace tandem::test
