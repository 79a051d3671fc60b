// Every way to call tandem_forward wrongly: its status, the words of its message, and outputs left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/api/mistake.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t huge = std::int64_t{1} << 62;

using Mistake = test::Mistake<Request>;

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreNamedAndLeaveTheOutputsAlone) { expect_refused(GetParam()); }

std::vector<Mistake> struct_mistakes() {
  return {
      {"StructAByteShortOfTheFirst",
       [](Request& r) { r.args.struct_size = 439; },
       {"args->struct_size is 439", "440"}},
      {"StudyOfAnotherVersion",
       [](Request& r) { r.study.struct_size -= 8; },
       {"study->struct_size is " + std::to_string(sizeof(tandem_study) - 8)}},
  };
}

std::vector<Mistake> option_mistakes() {
  return {
      {"Overlap",
       [](Request& r) { store(r.study.overlap, 4); },
       {"study.overlap is 4", "TANDEM_OVERLAP_AUTO"}},
      {"OverlapNegative", [](Request& r) { store(r.study.overlap, -1); }, {"study.overlap is -1"}},
      {"Turn", [](Request& r) { store(r.study.turn, 3); }, {"study.turn is 3", "TANDEM_TURN_AUTO"}},
      {"TurnNegative", [](Request& r) { store(r.study.turn, -1); }, {"study.turn is -1"}},
  };
}

std::vector<Mistake> dtype_mistakes() {
  return {
      {"DtypeOfQ", [](Request& r) { store(r.args.q.dtype, 0); }, {"q.dtype is 0", "TANDEM_BF16"}},
      {"DtypeUnknown", [](Request& r) { store(r.args.q.dtype, 6); }, {"q.dtype is 6", "TANDEM_FP32"}},
      {"DtypeOfK",
       [](Request& r) { r.args.k.dtype = TANDEM_BF16; },
       {"k.dtype is 1 (bf16)", "q.dtype is 3 (fp32)"}},
      {"DtypeOfV",
       [](Request& r) { store(r.args.v.dtype, 9); },
       {"v.dtype is 9 (unknown)", "q.dtype is 3 (fp32)"}},
      {"DtypeOfO",
       [](Request& r) { r.args.o.dtype = TANDEM_FP16; },
       {"o.dtype is 2 (fp16)", "q.dtype is 3 (fp32)"}},
      {"DtypeOfLse",
       [](Request& r) { r.args.lse.dtype = TANDEM_BF16; },
       {"lse.dtype is 1 (bf16)", "TANDEM_FP32"}},
  };
}

/// All tensors get the same head dim.
void set_head_dim(Request& r, std::int64_t head_dim) {
  for (tandem_tensor* tensor : {&r.args.q, &r.args.k, &r.args.v, &r.args.o}) tensor->shape[3] = head_dim;
}

std::vector<Mistake> shape_mistakes() {
  return {
      {"BatchNegative",
       [](Request& r) { r.args.q.shape[0] = -2; },
       {"q.shape[0] (batch) is -2", "0 or more"}},
      {"KeysNegative", [](Request& r) { r.args.k.shape[1] = -1; }, {"k.shape[1] (sequence length) is -1"}},
      {"LseNegative", [](Request& r) { r.args.lse.shape[2] = -4; }, {"lse.shape[2] (heads) is -4"}},
      {"HeadDimZero",
       [](Request& r) { set_head_dim(r, 0); },
       {"q.shape[3] (head dim) is 0", "multiple of 8"}},
      {"HeadDimOdd",
       [](Request& r) { set_head_dim(r, 12); },
       {"q.shape[3] (head dim) is 12", "multiple of 8"}},
      {"HeadDimLarge", [](Request& r) { set_head_dim(r, 520); }, {"q.shape[3] (head dim) is 520", "512"}},
      {"BatchOfK",
       [](Request& r) { r.args.k.shape[0] = 3; },
       {"k.shape[0] (batch) is 3", "q.shape[0], which is 2"}},
      {"HeadDimOfK",
       [](Request& r) { r.args.k.shape[3] = 8; },
       {"k.shape[3] (head dim) is 8", "which is 16"}},
      {"BatchOfV",
       [](Request& r) { r.args.v.shape[0] = 1; },
       {"v.shape[0] (batch) is 1", "k.shape[0], which is 2"}},
      {"LengthOfV",
       [](Request& r) { r.args.v.shape[1] = 4; },
       {"v.shape[1] (sequence length) is 4", "k.shape[1], which is 5"}},
      {"HeadsOfV",
       [](Request& r) { r.args.v.shape[2] = 1; },
       {"v.shape[2] (heads) is 1", "k.shape[2], which is 2"}},
      {"HeadDimOfV",
       [](Request& r) { r.args.v.shape[3] = 24; },
       {"o.shape[3] (head dim) is 16", "v.shape[3], which is 24"}},
      {"HeadDimOfVAndO",
       [](Request& r) { r.args.v.shape[3] = r.args.o.shape[3] = 20; },
       {"v.shape[3] (head dim) is 20", "multiple of 8"}},
      {"HeadDimOfVAndOLarge",
       [](Request& r) { r.args.v.shape[3] = r.args.o.shape[3] = 520; },
       {"v.shape[3] (head dim) is 520", "512"}},
      {"BatchOfO",
       [](Request& r) { r.args.o.shape[0] = 1; },
       {"o.shape[0] (batch) is 1", "q.shape[0], which is 2"}},
      {"LengthOfO",
       [](Request& r) { r.args.o.shape[1] = 5; },
       {"o.shape[1] (sequence length) is 5", "q.shape[1], which is 3"}},
      {"HeadsOfO",
       [](Request& r) { r.args.o.shape[2] = 2; },
       {"o.shape[2] (heads) is 2", "q.shape[2], which is 4"}},
      {"HeadDimOfO",
       [](Request& r) { r.args.o.shape[3] = 8; },
       {"o.shape[3] (head dim) is 8", "which is 16"}},
      {"BatchOfLse",
       [](Request& r) { r.args.lse.shape[0] = 4; },
       {"lse.shape[0] (batch) is 4", "which is 2"}},
      {"LengthOfLse", [](Request& r) { r.args.lse.shape[1] = 5; }, {"lse.shape[1] (sequence length) is 5"}},
      {"HeadsOfLse",
       [](Request& r) { r.args.lse.shape[2] = 2; },
       {"lse.shape[2] (heads) is 2", "which is 4"}},
      {"LastOfLse", [](Request& r) { r.args.lse.shape[3] = 16; }, {"lse.shape[3] is 16", "has to be 1"}},
      {"HeadsThatDoNotDivide",
       [](Request& r) { r.args.k.shape[2] = r.args.v.shape[2] = 3; },
       {"q.shape[2] (heads) is 4", "not a multiple of k.shape[2] (heads), which is 3"}},
      {"NoKeyHeads",
       [](Request& r) { r.args.k.shape[2] = r.args.v.shape[2] = 0; },
       {"q.shape[2] (heads) is 4", "k.shape[2] (heads), which is 0"}},
  };
}

std::vector<Mistake> size_mistakes() {
  return {
      {"ElementsOverflow",
       [](Request& r) { r.args.k.shape[1] = r.args.v.shape[1] = huge; },
       {"k.shape is [2, 4611686018427387904, 2, 16]", "63 bits"}},
      {"BytesOverflow",  // 2^62 elements, of stride 0, so that only their number is too large
       [](Request& r) {
         for (tandem_tensor* tensor : {&r.args.k, &r.args.v}) {
           tensor->shape[1] = huge / 64;
           tensor->stride[1] = 0;
         }
       },
       {"k.shape is [2, 72057594037927936, 2, 16]", "63 bits"}},
      {"ElementsOverflowButForAZero",
       [](Request& r) { r.args.q.shape[1] = huge, r.args.q.shape[2] = 0; },
       {"q.shape is [2, 4611686018427387904, 0, 16]", "63 bits"}},
      {"OffsetOverflows",
       [](Request& r) { r.args.q.stride[1] = huge; },
       {"q.stride [", "4611686018427387904", "63 bits"}},
      {"OffsetOverflowsDownwards",
       [](Request& r) { r.args.v.stride[0] = std::numeric_limits<std::int64_t>::min(); },
       {"v.stride [-9223372036854775808", "63 bits"}},
      {"OffsetsTogetherOverflow",
       [](Request& r) { r.args.q.stride[0] = r.args.q.stride[1] = huge / 4 - 1; },
       {"q.stride [1152921504606846975, 1152921504606846975", "63 bits"}},
      {"OutOfTheAddressSpace",
       [](Request& r) { r.args.q.stride[0] = -(huge / 8); },
       {"q.data is 0x", "address space"}},
  };
}

std::vector<Mistake> stride_mistakes() {
  return {
      {"LastStrideOfQ",
       [](Request& r) { r.args.q.stride[3] = 2; },
       {"q.stride[3] (head dim) is 2", "has to be 1"}},
      {"LastStrideOfK",
       [](Request& r) { r.args.k.stride[3] = 0; },
       {"k.stride[3] (head dim) is 0", "has to be 1"}},
      {"LastStrideOfV",
       [](Request& r) { r.args.v.stride[3] = -1; },
       {"v.stride[3] (head dim) is -1", "has to be 1"}},
      {"LastStrideOfO",
       [](Request& r) { r.args.o.stride[3] = 5; },
       {"o.stride[3] (head dim) is 5", "has to be 1"}},
      {"OutputBroadcast",
       [](Request& r) { r.args.o.stride[2] = 0; },
       {"o.stride is [", ", 0, 1]", "distinct"}},
      {"OutputRowsTooClose",
       [](Request& r) { r.args.o.stride[1] = 15; },
       {"o.stride is [", "15", "distinct"}},
      {"OutputRowsBackwardsTooClose",
       [](Request& r) { r.args.o.stride[2] = -8; },
       {"o.stride is [", "-8", "distinct"}},
      {"OutputDimensionsCoincide",  // heads 0 and 3 of one query are head 0 of its neighbours
       [](Request& r) { r.args.o.stride[1] = 2 * r.args.o.stride[2]; },
       {"o.stride is [", "distinct"}},
      {"OutputDimensionsCoincideByAPart",  // batch 1 begins within a row of batch 0
       [](Request& r) { r.args.o.stride[0] = 2 * r.args.o.stride[1] + 4; },
       {"o.stride is [", "distinct"}},
      {"LseBroadcast", [](Request& r) { r.args.lse.stride[0] = 0; }, {"lse.stride is [0, ", "distinct"}},
  };
}

void advance(tandem_tensor& tensor, std::ptrdiff_t bytes) {
  tensor.data = static_cast<std::byte*>(tensor.data) + bytes;
}

std::vector<Mistake> pointer_mistakes() {
  return {
      {"NullQ", [](Request& r) { r.args.q.data = nullptr; }, {"q.data is NULL"}},
      {"NullK", [](Request& r) { r.args.k.data = nullptr; }, {"k.data is NULL"}},
      {"NullV", [](Request& r) { r.args.v.data = nullptr; }, {"v.data is NULL"}},
      {"NullO", [](Request& r) { r.args.o.data = nullptr; }, {"o.data is NULL"}},
      {"NullQForAuto",
       [](Request& r) {
         r.args.backend = TANDEM_BACKEND_AUTO;
         r.args.q.data = nullptr;
       },
       {"q.data is NULL"}},
      {"MisalignedQ", [](Request& r) { advance(r.args.q, 2); }, {"q.data is 0x", "not aligned", "4 bytes"}},
      {"MisalignedK", [](Request& r) { advance(r.args.k, 1); }, {"k.data is 0x", "not aligned"}},
      {"MisalignedV", [](Request& r) { advance(r.args.v, 3); }, {"v.data is 0x", "not aligned"}},
      {"MisalignedO", [](Request& r) { advance(r.args.o, 1); }, {"o.data is 0x", "not aligned"}},
      {"MisalignedLse", [](Request& r) { advance(r.args.lse, 2); }, {"lse.data is 0x", "not aligned"}},
      {"InPlace",
       [](Request& r) { r.args.o = r.args.q; },
       {"o.data is 0x", "overlap those of q", "memory of its own"}},
      {"OutputIsQShifted",  // by a part of a row
       [](Request& r) {
         r.args.o = r.args.q;
         advance(r.args.o, 16);
       },
       {"o.data is 0x", "overlap those of q"}},
      {"OutputIsV",
       [](Request& r) { r.args.o.data = r.args.v.data; },
       {"o.data is 0x", "overlap those of v"}},
      {"LseStartsWithK",
       [](Request& r) { r.args.lse.data = r.args.k.data; },
       {"lse.data is 0x", "overlap those of k"}},
      {"LseIsO",
       [](Request& r) { r.args.lse.data = r.args.o.data; },
       {"lse.data is 0x", "overlap those of o"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Common, Mistakes, ::testing::ValuesIn(common_mistakes<Request>()), by_name);
INSTANTIATE_TEST_SUITE_P(Mask, Mistakes, ::testing::ValuesIn(mask_mistakes<Request>()), by_name);
INSTANTIATE_TEST_SUITE_P(Factor, Mistakes, ::testing::ValuesIn(factor_mistakes<Request>()), by_name);
INSTANTIATE_TEST_SUITE_P(Struct, Mistakes, ::testing::ValuesIn(struct_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Option, Mistakes, ::testing::ValuesIn(option_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Dtype, Mistakes, ::testing::ValuesIn(dtype_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Shape, Mistakes, ::testing::ValuesIn(shape_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Size, Mistakes, ::testing::ValuesIn(size_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Stride, Mistakes, ::testing::ValuesIn(stride_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Pointer, Mistakes, ::testing::ValuesIn(pointer_mistakes()), by_name);

// ---- Mistakes outside the struct

TEST(ForwardErrors, NullArguments) {
  EXPECT_EQ(tandem_forward(nullptr, nullptr, 0, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL"));
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_forward_workspace(nullptr, &bytes), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL"));
  EXPECT_EQ(bytes, 17u);
}

TEST(ForwardErrors, MemoryThatTheReferenceCantHave) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the process where new fails";
#endif
  Request request;
  request.args.backend = TANDEM_BACKEND_REFERENCE;
  for (tandem_tensor* tensor : {&request.args.k, &request.args.v}) {
    tensor->shape[1] = huge >> 10;  // one row, over and over
    tensor->stride[1] = 0;
  }
  EXPECT_EQ(request.run(), TANDEM_OUT_OF_MEMORY);
  EXPECT_THAT(tandem_last_error(), HasSubstr("host memory"));
  EXPECT_TRUE(request.outputs_untouched());
}

TEST(ForwardErrors, NowhereToPutTheWorkspaceSize) {
  Request request;
  EXPECT_EQ(tandem_forward_workspace(&request.args, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("bytes is NULL"));
}

TEST(ForwardErrors, WorkspaceQueryOfABadCallLeavesBytesAlone) {
  Request request;
  request.args.q.shape[3] = 7;
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("q.shape[3] (head dim) is 7"));
  EXPECT_EQ(bytes, 17u);
}

TEST(ForwardErrors, WorkspaceQueryNeedsAPointerToFollowForAuto) {
  Request request;
  request.args.q.data = nullptr;
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_OK)
      << "for one backend no data are needed";
  request.args.backend = TANDEM_BACKEND_AUTO;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_OK) << "k is there";
  for (tandem_tensor* tensor : {&request.args.k, &request.args.v, &request.args.o, &request.args.lse})
    tensor->data = nullptr;
  request.args.sinks = nullptr;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("q.data is NULL"));
}

/// Workspace mistakes, on the backend that needs one.
class WorkspaceErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(tandem_forward_workspace(&request_.args, &needed_), TANDEM_OK) << tandem_last_error();
    ASSERT_GT(needed_, 0u);
  }
  void expect(tandem_status status, const std::string& words) {
    EXPECT_EQ(status_, status);
    EXPECT_THAT(tandem_last_error(), HasSubstr(words));
    EXPECT_TRUE(request_.outputs_untouched());
  }
  void run(void* workspace, std::size_t bytes) {
    status_ = tandem_forward(&request_.args, workspace, bytes, nullptr);
  }

  Request request_;
  std::size_t needed_ = 0;
  tandem_status status_ = TANDEM_OK;
};

TEST_F(WorkspaceErrors, TooSmall) {
  run(request_.workspace.data(), needed_ - 1);
  expect(TANDEM_WORKSPACE_TOO_SMALL, "workspace_bytes is " + std::to_string(needed_ - 1));
  EXPECT_THAT(tandem_last_error(), HasSubstr("needs " + std::to_string(needed_)));
}

TEST_F(WorkspaceErrors, Null) {
  run(nullptr, needed_);
  expect(TANDEM_INVALID_ARGUMENT, "workspace is NULL");
}

TEST_F(WorkspaceErrors, Misaligned) {
  run(reinterpret_cast<std::byte*>(request_.workspace.data()) + 128, needed_);
  expect(TANDEM_INVALID_ARGUMENT, "not aligned to 256");
}

TEST(ForwardErrors, HopperOnThisMachine) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_BF16;
  Request request(c);
  request.args.backend = TANDEM_BACKEND_HOPPER;
  tandem_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tandem_get_info(&info), TANDEM_OK);
  const tandem_status status = request.run();
  if (!info.hopper_built) {
    EXPECT_EQ(status, TANDEM_UNSUPPORTED);
    EXPECT_THAT(tandem_last_error(), HasSubstr("cmake --preset hopper"));
  } else if (!info.hopper_usable) {
    EXPECT_EQ(status, TANDEM_NO_DEVICE);
    EXPECT_STREQ(tandem_last_error(), info.hopper_reason);
  } else {
    EXPECT_EQ(status, TANDEM_INVALID_ARGUMENT);
    EXPECT_THAT(tandem_last_error(), HasSubstr("q.data is host memory"));
  }
  EXPECT_TRUE(request.outputs_untouched());
}

TEST(InfoErrors, AreNamed) {
  EXPECT_EQ(tandem_get_info(nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("info is NULL"));
  tandem_info info{};
  info.struct_size = sizeof(info) - 1;
  info.cpu_threads = -5;
  EXPECT_EQ(tandem_get_info(&info), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("info->struct_size is " + std::to_string(sizeof(info) - 1)));
  info.struct_size = sizeof(info) + 1;
  EXPECT_EQ(tandem_get_info(&info), TANDEM_UNSUPPORTED);
  EXPECT_EQ(info.cpu_threads, -5);
}

}  // namespace
}  // namespace tandem::test
