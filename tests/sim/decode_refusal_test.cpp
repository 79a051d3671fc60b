// What decode's plan refuses, at its limit and one beyond.
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "api/hopper_decode.h"
#include "decode/plan.h"
#include "tests/sim/decode_plan_cases.h"

namespace tandem::test {
namespace {

using core::DecodeProblem;
using decode::DecodeVariant;
using testing::HasSubstr;

std::string message_of(const DecodeProblem& problem) {
  return std::string(decode::supported(problem).message());
}

TEST(DecodeRefusals, TakesAsManyKeysAsPositionsCanBeCounted) {
  EXPECT_EQ(message_of(problem_of({.capacity = 1 << 28})), "");
  EXPECT_THAT(message_of(problem_of({.capacity = (1 << 28) + 1})),
              HasSubstr("the cache's capacity is 268435457; the Hopper backend takes at most 2^28 keys"));
  // 2^21 units of each stream, and 1 more of what it costs besides: one for each 64 KB.
  const Shape shape{.batch = 511, .capacity = 1 << 28};
  const DecodeVariant v = *decode::choose_variant(problem_of(shape));
  ASSERT_EQ(v.block_n, 128);
  ASSERT_EQ(v.stream_overhead(), 1);
  EXPECT_EQ(message_of(problem_of(shape)), "");
  EXPECT_THAT(message_of(problem_of({.batch = 512, .capacity = 1 << 28})),
              HasSubstr("(capacity in key blocks + 1) is " + std::to_string((std::int64_t{1} << 30) + 512)));
  DecodeProblem p = problem_of({.batch = 512, .capacity = 1 << 28});
  p.split_size = 128;
  EXPECT_THAT(message_of(p), HasSubstr("is 1073741824; the Hopper backend takes fewer than 2^30"));
  p = problem_of({.batch = 512, .capacity = (1 << 28) - 128});
  p.split_size = 128;
  EXPECT_EQ(message_of(p), "");
}

TEST(DecodeRefusals, TakesPagesOfPowersOfTwoAndHeadDimsUpTo512) {
  for (std::int64_t size = 1; size <= 260; ++size) {
    const bool power = (size & (size - 1)) == 0;
    const std::string message = message_of(problem_of({.capacity = 4 * size, .page_size = size}));
    EXPECT_EQ(message.empty(), power) << size;
    if (!power) {
      EXPECT_THAT(message, HasSubstr("cache.k.shape[1] (page size) is " + std::to_string(size) + ";"));
    }
  }
  EXPECT_THAT(message_of(problem_of({.capacity = 96, .page_size = 24})), HasSubstr("use 16 or 32"));
  EXPECT_THAT(message_of(problem_of({.capacity = 12, .page_size = 3})), HasSubstr("use 2 or 4"));
  EXPECT_EQ(message_of(problem_of({.capacity = 300})), "") << "not paged";
  EXPECT_EQ(message_of(problem_of({.head_dim = 512})), "");
  EXPECT_THAT(message_of(problem_of({.head_dim = 520})), HasSubstr("dtype bf16 with head dim 520;"));
  EXPECT_EQ(message_of(problem_of({.head_dim = 576, .value_dim = 512})), "");
  EXPECT_EQ(message_of(problem_of({.head_dim = 16, .value_dim = 8})), "");
  EXPECT_THAT(message_of(problem_of({.head_dim = 584, .value_dim = 512})), HasSubstr("with head dim 584;"));
  const std::string of_fp32 = message_of(problem_of({.dtype = TANDEM_FP32}));
  EXPECT_THAT(of_fp32, HasSubstr("dtype fp32"));
  EXPECT_THAT(of_fp32, HasSubstr("pass such, or everything in host memory to TANDEM_BACKEND_CPU"));
  EXPECT_EQ(decode::workspace_bytes(problem_of({.dtype = TANDEM_FP32})), 0U);
  EXPECT_EQ(decode::plan_bytes(problem_of({.dtype = TANDEM_FP32})), 0U);
}

TEST(DecodeRefusals, TakesNoChunksSlopesOrTrees) {
  DecodeProblem p = problem_of({});
  p.slopes.data = at<const float>(1);
  EXPECT_THAT(message_of(p), testing::StartsWith("alibi_slopes are given;"));
  p.slopes.data = nullptr, p.tree = at<const std::uint64_t>(1);
  EXPECT_THAT(message_of(p), testing::StartsWith("a tree is given;"));
  p.tree = nullptr;
  p.mask.chunk = 1;
  EXPECT_THAT(message_of(p), HasSubstr("mask.chunk is 1; the Hopper backend takes no chunks"));
}

TEST(DecodeRefusals, TakesTablesOfAnglesAtMultiplesOf16Bytes) {
  for (std::uintptr_t address = 4096; address <= 4112; ++address)
    for (const bool of_cos : {false, true}) {
      DecodeProblem p = problem_of({});
      p.rotary = {at<void>(13), at<void>(14), TANDEM_FP32, 64, 8, true};
      (of_cos ? p.rotary.cos : p.rotary.sin) = reinterpret_cast<const void*>(address);
      const std::string name = of_cos ? "rotary.cos" : "rotary.sin";
      EXPECT_EQ(message_of(p).rfind(name + " is not aligned: its address modulo", 0) == 0, address % 16 > 0);
    }
}

std::string message_of_plan(DecodeProblem p, std::uintptr_t address) {
  p.plan = reinterpret_cast<const void*>(address);
  return std::string(api::check_step_plan(p).message());
}

TEST(DecodeRefusals, TakesPlansAtMultiplesOf256BytesAndApartFromOutputs) {
  const DecodeProblem p = problem_of({.capacity = 64});
  EXPECT_EQ(message_of_plan(p, 0), "");
  const auto own = reinterpret_cast<std::uintptr_t>(at<void>(13)),
             o = reinterpret_cast<std::uintptr_t>(p.o.data);
  EXPECT_EQ(message_of_plan(p, own), "");
  EXPECT_THAT(
      message_of_plan(p, own + 128),
      HasSubstr("plan is 0xd00000080, which is not aligned to 256 bytes; pass what tandem_decode_plan"));
  EXPECT_THAT(message_of_plan(p, o),
              HasSubstr("o.data is 0x400000000, whose elements overlap those of plan"));
  EXPECT_THAT(message_of_plan(p, o - 256), HasSubstr("overlap those of plan")) << "the plan ends in o";
  EXPECT_THAT(message_of_plan(p, std::uintptr_t{0} - 256), HasSubstr("out of the address space"));
  DecodeProblem as_forward = p;
  as_forward.mask.chunk = 16;
  EXPECT_EQ(message_of_plan(as_forward, o + 1), "") << "it reads none";
}

}  // namespace
}  // namespace tandem::test
