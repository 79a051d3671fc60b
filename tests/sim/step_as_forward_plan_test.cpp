// Decoding steps with what decode's kernels don't know: the forward that they become, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "api/hopper_decode.h"
#include "api/operations.h"
#include "api/step_as_forward.h"
#include "decode/plan.h"
#include "forward/plan.h"
#include "tests/cpu/workspace.h"
#include "tests/sim/step_draws.h"

namespace tandem::test {
namespace {

using core::DecodeProblem;
using testing::HasSubstr;

std::uint64_t first_seed() {  // another one: --gtest_random_seed
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
}

template <typename Problem>
void run(const api::Backend<Problem>& backend, const Problem& problem) {
  Workspace workspace(backend.workspace == nullptr ? 0 : backend.workspace(problem));
  ASSERT_TRUE(backend.run(problem, workspace.data(), nullptr).ok());
}

void expect_near(const HostTensor& a, const HostTensor& b, double tolerance) {
  const auto x = a.values(), y = b.values();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;  // infinities
    ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(y[i]))) << "at " << i;
  }
}

/// Entries and pages that do not exist.
void make_wild(DecodeTensors& t, std::uint64_t seed) {
  if (seed % 3 != 0) return;
  if (t.setup.batch_index) t.batch_index[0] = seed % 2 == 0 ? -3 : 1000;
  if (t.setup.page_size > 0 && t.setup.length(0) > 0) t.page_table[0] = seed % 2 == 0 ? -3 : 1'000'000;
}

/// A step and the forward that it becomes, each by a backend of its own kind of problem, agree.
void expect_the_same(const DecodeCase& c, std::uint64_t seed, bool by_reference) {
  DecodeTensors as_step(c), as_forward(c);
  make_wild(as_step, seed), make_wild(as_forward, seed);
  const auto& decode = api::decode_operation;
  const auto& forward = api::forward_operation;
  run(by_reference ? decode.reference : decode.cpu, as_step.problem());
  run(by_reference ? forward.reference : forward.cpu, api::as_forward(as_forward.problem()));
  const double unit = c.dtype == TANDEM_BF16 ? 0x1p-7 : c.dtype == TANDEM_FP16 ? 0x1p-10 : 1e-5;
  expect_near(as_forward.o, as_step.o, unit);
  if (c.lse) expect_near(as_forward.lse, as_step.lse, 1e-4);
  EXPECT_TRUE(same_bytes(as_forward.k_cache, as_step.k_cache));
  EXPECT_TRUE(same_bytes(as_forward.v_cache, as_step.v_cache));
}

TEST(StepAsForward, MeansTheSame) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 120; ++seed) {
    DecodeCase c = draw_forward_step(seed);
    if (seed % 2 == 0) c.dtype = TANDEM_FP32;  // of the host's backends: the closest look
    if (c.rotary_dtype != TANDEM_FP32) c.rotary_dtype = c.dtype;
    SCOPED_TRACE(testing::Message() << c);
    expect_the_same(c, seed, /*by_reference=*/false);
    expect_the_same(c, seed, /*by_reference=*/true);
    if (HasFailure()) return;
  }
}

// The kernel depends on the batch nowhere: so a sequence's bits are the same in any, as fixed splits promise.
TEST(StepAsForward, IsServedByOneKernelOfTheForward) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 300; ++seed) {
    const DecodeCase c = draw_forward_step(seed);
    SCOPED_TRACE(testing::Message() << c);
    const DecodeTensors t(c);
    const DecodeProblem step = t.problem();
    ASSERT_TRUE(api::goes_as_forward(step));
    const core::Status status = api::step_supported(step);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(decode::supported(step).ok());
    const core::ForwardProblem forward = api::as_forward(step);
    EXPECT_TRUE(forward::supported(forward).ok());
    if (step.split_size > 0) {
      EXPECT_EQ(forward::candidates_of(forward).size(), 1u);
    }
    EXPECT_EQ(api::step_plan_bytes(step), 0u);
  }
}

TEST(StepAsForward, LeavesTheCountersOfDecodesStepsAlone) {
  DecodeCase c = draw_forward_step(3);
  c.slopes = true;
  const DecodeTensors t(c);
  const DecodeProblem step = t.problem();
  EXPECT_EQ(api::step_workspace_bytes(step),
            decode::counter_bytes + forward::workspace_bytes(api::as_forward(step)));
  std::byte memory[decode::counter_bytes + 1];
  EXPECT_EQ(api::workspace_of_forward(memory), memory + decode::counter_bytes);
  EXPECT_EQ(decode::counter_bytes % 256, 0u);
}

TEST(StepAsForward, IsNoneWhereDecodesKernelsKnowAll) {
  DecodeCase c;
  c.head_dim = 256, c.sinks = true, c.mask = core::Mask::causal();
  const DecodeTensors t(c);
  const DecodeProblem step = t.problem();
  EXPECT_FALSE(api::goes_as_forward(step));
  EXPECT_TRUE(api::step_supported(step).ok());
  EXPECT_EQ(api::step_workspace_bytes(step), decode::workspace_bytes(step));
  EXPECT_EQ(api::step_plan_bytes(step), decode::plan_bytes(step));
}

// ---- What is refused

DecodeCase chunked() {
  DecodeCase c;
  c.q_heads = 4, c.kv_heads = 2, c.lengths = {40, 9}, c.mask.chunk = 16;
  return c;
}

std::string message_of(const DecodeCase& c) {
  const DecodeTensors t(c);
  return std::string(api::step_supported(t.problem()).message());
}

TEST(StepAsForward, NamesWhatTheForwardDoesNotServe) {
  EXPECT_EQ(message_of(chunked()), "");
  DecodeCase c = chunked();
  c.head_dim = 192;
  EXPECT_EQ(message_of(c), "");
  c.head_dim = 200;
  EXPECT_EQ(message_of(c),
            "q.shape[3] (head dim) is 200 and mask.chunk is given; with it the Hopper backend takes head "
            "dims up to "
            "192: pass such, or everything in host memory to TANDEM_BACKEND_CPU");
  c.mask.chunk = 0, c.tree = true;
  EXPECT_THAT(message_of(c), HasSubstr("head dim) is 200 and tree is given"));
  c.slopes = true;
  EXPECT_THAT(message_of(c), HasSubstr("head dim) is 200 and tree is given"));
  c.tree = false;
  EXPECT_EQ(message_of(c), "") << "slopes alone";
  c = chunked(), c.kernel = TANDEM_DECODE_SHARED_P;
  EXPECT_THAT(message_of(c), HasSubstr("study.kernel is 2 and mask.chunk is given"));
  c = chunked(), c.eight_bit.on = true, c.slopes = true, c.cache.row_gap = 0;
  EXPECT_THAT(message_of(c), HasSubstr("cache.k.dtype is 4 (e4m3) and mask.chunk is given"));
  c.mask.chunk = 0;
  EXPECT_THAT(message_of(c),
              HasSubstr("and alibi_slopes is given; with it the Hopper backend takes caches of "));
}

TEST(StepAsForward, TakesValuesOfAnotherHeadDim) {
  DecodeCase c;
  c.head_dim = 64, c.value_dim = 128, c.lengths = {40, 9};
  EXPECT_TRUE(api::goes_as_forward(DecodeTensors(c).problem()));
  EXPECT_EQ(message_of(c), "");
  c.value_dim = 256;
  EXPECT_EQ(message_of(c), "");
  c.value_dim = 264;
  EXPECT_THAT(message_of(c),
              HasSubstr("cache.v.shape[3] (head dim) is 264 and cache.v of another head dim is given; "
                        "with it the Hopper backend takes head dims up to 256"));
  c.value_dim = 32, c.new_len = 1;
  EXPECT_THAT(message_of(c),
              HasSubstr("cache.v.shape[3] (head dim) is 32, cache.k.shape[3] is 64 and k_new is given"));
  put_values_into_keys(c, 32);
  EXPECT_FALSE(api::goes_as_forward(DecodeTensors(c).problem()));
  EXPECT_EQ(message_of(c), "") << "in the keys";
  c = {}, c.value_dim = 128, c.split_size = 64;
  EXPECT_THAT(message_of(c), HasSubstr("split_size is 64 and cache.v of another head dim is given"));
}

TEST(StepAsForward, NamesPagesThatTheForwardDoesNotServe) {
  DecodeCase c = chunked();
  c.page_size = 16;
  EXPECT_EQ(message_of(c), "");
  c.batch_index = true;
  EXPECT_THAT(message_of(c),
              HasSubstr("cache.batch_index is given, and cache.page_table and mask.chunk too"));
  c.page_size = 0;
  EXPECT_EQ(message_of(c), "") << "of entries";
  c = chunked(), c.page_size = 8;
  EXPECT_EQ(
      message_of(c),
      "cache.k.shape[1] (page size) is 8 and mask.chunk is given; with it the Hopper backend takes powers of "
      "two from 16 on");
  c.page_size = 64, c.capacity = 64;
  DecodeTensors t(c);
  DecodeProblem step = t.problem();
  step.k_cache.shape[1] = step.v_cache.shape[1] = 24;
  EXPECT_THAT(std::string(api::step_supported(step).message()),
              HasSubstr("cache.k.shape[1] (page size) is 24"));
}

TEST(StepAsForward, NamesTensorsAsItsCallerDoes) {
  DecodeTensors t(chunked());
  DecodeProblem step = t.problem();
  step.k_cache.stride[1] = 3;
  EXPECT_THAT(std::string(api::step_supported(step).message()), HasSubstr("cache.k.stride[1]"));
  DecodeCase c = chunked();
  c.dtype = TANDEM_FP32;
  EXPECT_THAT(message_of(c), HasSubstr("no Hopper decode kernel is built for dtype"));
}

}  // namespace
}  // namespace tandem::test
