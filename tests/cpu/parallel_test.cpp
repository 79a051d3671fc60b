// Tasks on the CPU backend's threads: each once, and no scratch shared.
#include "cpu/parallel.h"

#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

namespace tandem::test {
namespace {

/// Sets the number of threads for one test.
struct Threads {
  explicit Threads(int count) { cpu::set_thread_count(count); }
  ~Threads() { cpu::set_thread_count(0); }
};

/// Runs `tasks` tasks; says what went wrong, "" if nothing did.
std::string failure_of(std::int64_t tasks, int threads) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks)),
      busy(static_cast<std::size_t>(threads));
  std::atomic<int> shared = 0, outside = 0;
  cpu::for_each_task(tasks, [&](std::int64_t task, int thread) {
    if (thread < 0 || thread >= threads) {
      ++outside;
      return;
    }
    std::atomic<int>& mine = busy[static_cast<std::size_t>(thread)];
    if (mine.exchange(1) != 0) ++shared;
    ++runs[static_cast<std::size_t>(task)];
    if (task % 7 == 0) std::this_thread::yield();
    mine = 0;
  });
  if (outside > 0) return "a thread outside [0, thread_count())";
  if (shared > 0) return "two tasks at a time with one thread's scratch";
  for (const std::atomic<int>& count : runs)
    if (count != 1) return "a task that ran " + std::to_string(count) + " times";
  return "";
}

TEST(Parallel, EveryTaskRunsOnceAndScratchIsNotShared) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 300; ++i) {
    const int threads = 1 + static_cast<int>(random() % 9);
    const auto tasks = static_cast<std::int64_t>(random() % 100);
    const Threads set(threads);
    ASSERT_EQ(failure_of(tasks, threads), "") << tasks << " tasks, " << threads << " threads";
  }
}

TEST(Parallel, CallsAtTheSameTimeShareTheWorkers) {
  constexpr int threads = 4;
  const Threads set(threads);
  std::vector<std::string> failures(6);
  {
    std::vector<std::jthread> callers;
    for (std::string& failure : failures)
      callers.emplace_back([&failure] {
        for (int i = 0; i < 200 && failure.empty(); ++i) failure = failure_of(1 + i % 40, threads);
      });
  }
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(Parallel, MoreTasksThanOneRunAtTheSameTime) {
  const Threads set(3);
  std::atomic<int> running = 0, most = 0;
  for (int attempt = 0; attempt < 100 && most < 3; ++attempt)
    cpu::for_each_task(30, [&](std::int64_t, int) {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --running;
    });
  EXPECT_EQ(most, 3);
}

}  // namespace
}  // namespace tandem::test
