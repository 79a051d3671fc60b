// What a call that asks for a kernel for study gets from the library that has none of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/api/request.h"

namespace tandem::test {
namespace {

using testing::HasSubstr;

bool hopper_built() {
  tandem_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(tandem_get_info(&info), TANDEM_OK);
  return info.hopper_built != 0;
}

/// A problem that Hopper's kernels serve.
ForwardCase served_case() {
  return {.dtype = TANDEM_BF16,
          .batch = 1,
          .q_len = 64,
          .k_len = 64,
          .q_heads = 2,
          .kv_heads = 2,
          .head_dim = 64};
}

TEST(Study, TheWordsNameTheLibraryThatHasTheKernel) {
  Request request(served_case(), TANDEM_BACKEND_HOPPER);
  request.study.overlap = TANDEM_OVERLAP_SERIAL;
  std::size_t bytes = 0;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_UNSUPPORTED);
  EXPECT_THAT(tandem_last_error(), HasSubstr(hopper_built() ? "libtandem_study" : "cmake --preset hopper"));
  request.study.overlap = TANDEM_OVERLAP_AUTO;
  EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), hopper_built() ? TANDEM_OK : TANDEM_UNSUPPORTED);
}

TEST(Study, TheSameForAStep) {
  DecodeCase c = small_step();
  c.dtype = TANDEM_BF16;
  c.head_dim = 64;
  DecodeRequest request(c);
  request.args.backend = TANDEM_BACKEND_HOPPER;
  request.study.kernel = TANDEM_DECODE_PLAIN;
  std::size_t bytes = 0;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &bytes), TANDEM_UNSUPPORTED);
  EXPECT_THAT(tandem_last_error(), HasSubstr(hopper_built() ? "libtandem_study" : "cmake --preset hopper"));
  request.study.kernel = TANDEM_DECODE_SHARED_P;
  EXPECT_EQ(tandem_decode_workspace(&request.args, &bytes), hopper_built() ? TANDEM_OK : TANDEM_UNSUPPORTED);
}

}  // namespace
}  // namespace tandem::test
