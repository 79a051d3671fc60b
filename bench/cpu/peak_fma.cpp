#include "bench/cpu/peak_fma.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/cpu/peak_fma.cpp"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tandem::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Runs `rounds` times 12 independent multiply-adds; returns the FLOPs. The sums escape, so that they stay.
double multiply_add_rounds(std::int64_t rounds, float* escape) {
  const hn::ScalableTag<float> f;
  constexpr int chains = 12;  // covers the latency of two units, and fits into 16 registers with its operands
  hn::Vec<decltype(f)> sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = hn::Set(f, static_cast<float>(i));
  const auto factor = hn::Set(f, 0.999f), addend = hn::Set(f, 0.1f);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) sums[i] = hn::MulAdd(sums[i], factor, addend);
  }
  auto total = sums[0];
  for (int i = 1; i < chains; ++i) total = hn::Add(total, sums[i]);
  *escape = hn::GetLane(hn::SumOfLanes(f, total));
  return 2.0 * chains * static_cast<double>(hn::Lanes(f)) * static_cast<double>(rounds);
}

}  // namespace tandem::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::bench {

HWY_EXPORT(multiply_add_rounds);

double peak_fma_sample(int threads) {
  constexpr std::int64_t rounds = 10'000'000;
  using Clock = std::chrono::steady_clock;
  std::atomic<double> flops = 0;
  const Clock::time_point start = Clock::now();
  const auto run = [&flops] {
    volatile float kept;
    float escape;
    flops += HWY_DYNAMIC_DISPATCH(multiply_add_rounds)(rounds, &escape);
    kept = escape;
    static_cast<void>(kept);
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(run);
    run();
  }
  return flops / std::chrono::duration<double>(Clock::now() - start).count() * 1e-9;
}

}  // namespace tandem::bench
#endif
