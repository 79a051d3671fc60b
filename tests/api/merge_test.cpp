// tandem_merge as users see it, in C and in C++: what it does, and every way to call it wrongly.
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <tandem/attention.hpp>
#include <tandem/tandem.h>

#include "tests/api/mistake.h"
#include "tests/support/merge_case.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using Args = tandem_merge_args;

constexpr std::int64_t huge = std::int64_t{1} << 62;

MergeCase small_merge() {
  return {
      .in = TANDEM_FP16, .out = TANDEM_BF16, .parts = 3, .batch = 2, .length = 3, .heads = 4, .head_dim = 16};
}

using Mistake = test::Mistake<Args>;

class MergeMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(MergeMistakes, AreNamedAndLeaveTheOutputsAlone) {
  const MergeTensors t(small_merge());
  Args args = to_c(t.problem());
  expect_refused(GetParam(), args, [&args] { return tandem_merge(&args, nullptr); });
  EXPECT_TRUE(t.o.untouched() && t.lse.untouched());
}

INSTANTIATE_TEST_SUITE_P(Common, MergeMistakes, ::testing::ValuesIn(common_mistakes<Args>()), by_name);

INSTANTIATE_TEST_SUITE_P(
    Options, MergeMistakes,
    testing::Values(
        Mistake{"Parts", [](Args& a) { a.parts = -1; }, {"parts is -1", "0 or more"}},
        Mistake{"DtypeOfParts", [](Args& a) { store(a.o_parts.dtype, 6); }, {"o_parts.dtype is 6 (unknown)"}},
        Mistake{"DtypeOfO", [](Args& a) { store(a.o.dtype, 0); }, {"o.dtype is 0", "TANDEM_FP32"}},
        Mistake{"DtypeOfLseParts",
                [](Args& a) { a.lse_parts.dtype = TANDEM_BF16; },
                {"lse_parts.dtype is 1 (bf16)", "TANDEM_FP32"}},
        Mistake{"DtypeOfLse", [](Args& a) { a.lse.dtype = TANDEM_FP16; }, {"lse.dtype is 2 (fp16)"}}),
    by_name);

INSTANTIATE_TEST_SUITE_P(
    Shapes, MergeMistakes,
    testing::Values(
        Mistake{"NegativeSize", [](Args& a) { a.o.shape[1] = -3; }, {"o.shape[1] (sequence length) is -3"}},
        Mistake{
            "HeadDim", [](Args& a) { a.o.shape[3] = 12; }, {"o.shape[3] (head dim) is 12", "multiple of 8"}},
        Mistake{"HeadsOfParts",
                [](Args& a) { a.o_parts.shape[2] = 3; },
                {"o_parts.shape[2] (heads) is 3", "o.shape[2], which is 4"}},
        Mistake{"BatchOfLse", [](Args& a) { a.lse.shape[0] = 1; }, {"lse.shape[0] (batch) is 1"}},
        Mistake{"ColumnsOfLseParts", [](Args& a) { a.lse_parts.shape[3] = 2; }, {"lse_parts.shape[3] is 2"}},
        Mistake{"ColumnsOfLse", [](Args& a) { a.lse.shape[3] = 0; }, {"lse.shape[3] is 0"}}),
    by_name);

INSTANTIATE_TEST_SUITE_P(
    Memory, MergeMistakes,
    testing::Values(
        Mistake{"StrideOfHeadDim",
                [](Args& a) { a.o_parts.stride[3] = 2; },
                {"o_parts.stride[3] (head dim) is 2"}},
        Mistake{"StrideOfParts",
                [](Args& a) { a.o_part_stride = huge; },
                {"o_part_stride is 4611686018427387904 with 3 parts", "63 bits"}},
        Mistake{"StrideOfLogarithms", [](Args& a) { a.lse_part_stride = huge; }, {"lse_part_stride is "}},
        Mistake{"OutputsOverThemselves",
                [](Args& a) { a.o.stride[1] = 0; },
                {"o.stride is ", "the same address"}},
        Mistake{"NoParts", [](Args& a) { a.o_parts.data = nullptr; }, {"o_parts.data is NULL"}},
        Mistake{"NoLogarithms", [](Args& a) { a.lse_parts.data = nullptr; }, {"lse_parts.data is NULL"}},
        Mistake{"NoOutput", [](Args& a) { a.o.data = nullptr; }, {"o.data is NULL"}},
        Mistake{"Unaligned",
                [](Args& a) { a.o.data = static_cast<char*>(a.o.data) + 1; },
                {"o.data is ", "not aligned to its elements of 2 bytes"}},
        Mistake{"LseOverO", [](Args& a) { a.lse.data = a.o.data; }, {"lse.data is ", "overlap those of o"}},
        Mistake{"OutputOverThePart",
                [](Args& a) {
                  a.o.data = static_cast<char*>(a.o_parts.data) + 2 * a.o_part_stride * 2;
                  std::memcpy(a.o.stride, a.o_parts.stride, sizeof(a.o.stride));
                },
                {"o.data is ", "overlap those of part 2 of o_parts"}}),
    by_name);

TEST(TandemMerge, WithoutArgumentsSaysSo) {
  EXPECT_EQ(tandem_merge(nullptr, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("tandem_merge_args"));
}

TEST(TandemMerge, EveryBackendOfTheHostMerges) {
  for (const tandem_backend backend : {TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
    const MergeTensors t(small_merge());
    Args args = to_c(t.problem());
    args.backend = backend;
    ASSERT_EQ(tandem_merge(&args, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(merge_failure(t, standard_merge(t.problem())), "");
  }
}

TEST(TandemMerge, OfNoPartsNeedsNone) {
  const MergeTensors t({.parts = 0, .length = 3, .heads = 2, .head_dim = 8});
  Args args = to_c(t.problem());
  args.o_parts.data = args.lse_parts.data = nullptr;
  ASSERT_EQ(tandem_merge(&args, nullptr), TANDEM_OK) << tandem_last_error();
  EXPECT_THAT(t.o.values(), testing::Each(0));
}

TEST(TandemMerge, OfNoRowsEndsAtOnceHoweverManyPartsItHas) {
  MergeCase c = small_merge();
  c.length = 0;
  const MergeTensors t(c);
  Args args = to_c(t.problem());
  args.parts = huge, args.o_part_stride = args.lse_part_stride = 0;
  EXPECT_EQ(tandem_merge(&args, nullptr), TANDEM_OK) << tandem_last_error();
}

TEST(TandemMerge, OfNoRowsWritesNothing) {
  for (const MergeCase& c : {MergeCase{.batch = 0}, MergeCase{.length = 0}, MergeCase{.heads = 0}}) {
    const MergeTensors t(c);
    Args args = to_c(t.problem());
    args.o.data = args.o_parts.data = args.lse_parts.data = nullptr;
    EXPECT_EQ(tandem_merge(&args, nullptr), TANDEM_OK) << tandem_last_error();
  }
}

TEST(AttentionMerge, IsTandemMergeInTypes) {
  const float parts[] = {1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4}, logarithms[] = {0, std::log(2.f)};
  float o[8] = {}, lse = 0;
  const Shape shape{.head_dim = 8};
  const Status status =
      attention_merge(Parts<float>{.count = 2,
                                   .o = Tensor<const float>::bshd(parts, shape),
                                   .o_stride = 8,
                                   .lse = Tensor<const float>::bshd(logarithms, {}),
                                   .lse_stride = 1},
                      Tensor<float>::bshd(o, shape), {.lse = Tensor<float>::bshd(&lse, {})});
  ASSERT_TRUE(status) << status.message();
  EXPECT_THAT(o, testing::Each(testing::FloatNear(3, 1e-6f)));
  EXPECT_NEAR(lse, std::log(3.f), 1e-6f);
}

}  // namespace
}  // namespace tandem::test
