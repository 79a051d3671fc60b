// What a call that asks for a kernel for study gets from the library that has none of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

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

// The words are of the call that would run, whatever it asks for.
TEST(Study, WhatTheForwardServesIsExplained) {
  static const float slopes[2] = {0.5f, 0.25f}, sinks[2] = {};
  static const std::uint64_t tree[64] = {1};
  const auto statuses = [](const auto& ask) {
    Request request(served_case(), TANDEM_BACKEND_HOPPER);
    ask(request);
    std::size_t bytes = 0;
    char text[4096] = "";
    const tandem_status served = tandem_forward_workspace(&request.args, &bytes);
    EXPECT_EQ(tandem_explain_forward(&request.args, text, sizeof text), served) << tandem_last_error();
    if (served == TANDEM_OK) {
      EXPECT_THAT(std::string(text), HasSubstr("* d64")) << "the kernel that is taken";
    }
  };
  statuses([](Request&) {});
  statuses([](Request& r) { r.args.alibi_slopes = slopes; });
  statuses([](Request& r) { r.args.sinks = sinks; });
  statuses([](Request& r) { r.args.tree = tree; });
  statuses([](Request& r) {
    r.mask.struct_size = sizeof r.mask, r.mask.kind = TANDEM_MASK_CAUSAL, r.mask.chunk = 16;
    r.args.mask = &r.mask;
  });
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
