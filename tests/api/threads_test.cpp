#include <barrier>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/request.h"

namespace tandem::test {
namespace {

/// Runs body(0) ... body(count - 1), each on a thread of its own.
template <typename Body>
void on_threads(int count, Body body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([=] { body(i); });
}

TEST(Threads, EachSeesItsOwnLastError) {
  constexpr int count = 4;
  std::barrier all_have_failed(count);
  std::vector<std::string> words(count);
  on_threads(count, [&](int i) {
    Request request;
    const bool fresh = std::string(tandem_last_error()).empty();
    request.args.softcap = -1.0f - static_cast<float>(i);
    request.run();
    all_have_failed.arrive_and_wait();
    words[static_cast<std::size_t>(i)] = fresh ? tandem_last_error() : "an error before the first call";
  });
  for (int i = 0; i < count; ++i)
    EXPECT_THAT(words[static_cast<std::size_t>(i)],
                ::testing::HasSubstr("softcap is -" + std::to_string(i + 1) + ";"));
}

ForwardCase case_of(int i) {
  return {.dtype = i % 2 == 0 ? TANDEM_BF16 : TANDEM_FP32,
          .batch = 1 + i % 2,
          .q_len = 50 + 37 * i,
          .k_len = 200 - 31 * i,
          .q_heads = 4,
          .kv_heads = i % 2 == 0 ? 4 : 2,
          .head_dim = 16 + 24 * i,
          .mask = i % 3 == 0 ? core::Mask::causal() : core::Mask::full(),
          .seed = static_cast<std::uint64_t>(i)};
}

TEST(Threads, DifferentProblemsAtOnceGiveWhatTheyGiveAlone) {
  constexpr int count = 4, repeats = 10;
  std::vector<std::vector<double>> alone;
  for (int i = 0; i < count; ++i) {
    Request request(case_of(i));
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    alone.push_back(request.tensors.o.values());
  }
  std::barrier start(count);
  on_threads(count, [&](int i) {
    start.arrive_and_wait();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      Request request(case_of(i));
      EXPECT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
      EXPECT_EQ(request.tensors.o.values(), alone[static_cast<std::size_t>(i)]) << "problem " << i;
    }
  });
}

}  // namespace
}  // namespace tandem::test
