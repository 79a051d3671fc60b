// Each verb of the software Hopper against plain code.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "hw/hw.h"
#include "hw/sim/machine.h"
#include "hw/sim/trace.h"

namespace tandem {
namespace {

using hw::sim::LaunchConfig;
using hw::sim::Policy;
using hw::sim::Report;

class Verbs : public testing::TestWithParam<Policy> {
 protected:
  Report run(int threads, int shared_bytes, const std::function<void()>& body, int blocks = 1) const {
    LaunchConfig config;
    config.blocks = blocks;
    config.threads = threads;
    config.shared_bytes = shared_bytes;
    config.policy = GetParam();
    config.seed = 7;
    return hw::sim::launch(config, body);
  }
};

std::string name_of(const testing::TestParamInfo<Policy>& info) { return hw::sim::name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Policies, Verbs, testing::Values(Policy::eager, Policy::late, Policy::random),
                         name_of);

TEST_P(Verbs, ThreadsKnowTheirPlace) {
  std::vector<int> seen(3 * 256);
  const Report report = run(
      256, 0,
      [&] {
        const std::uint32_t thread = hw::thread_index();
        EXPECT_EQ(hw::lane_index(), thread % 32);
        EXPECT_EQ(hw::warp_index(), thread / 32);
        EXPECT_EQ(hw::warpgroup_index(), thread / 128);
        EXPECT_EQ(hw::grid_size(), 3u);
        ++seen[hw::block_index() * 256 + thread];
      },
      3);
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(seen, std::vector<int>(3 * 256, 1));
}

TEST_P(Verbs, ElectionElectsTheSameLaneOfEveryWarpEachTime) {
  int elected[2][4] = {};
  const Report report = run(128, 0, [&] {
    for (auto& round : elected) {
      if (hw::elect_one()) round[hw::thread_index() / 32] += 1 + static_cast<int>(hw::lane_index());
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
  for (int warp = 0; warp < 4; ++warp) {
    EXPECT_TRUE(elected[0][warp] >= 1 && elected[0][warp] <= 32);
    EXPECT_EQ(elected[0][warp], elected[1][warp]);
  }
}

TEST_P(Verbs, ShufflesExchangeValuesOfLanes) {
  std::vector<std::uint32_t> words(64);
  std::vector<float> floats(64);
  const Report report = run(64, 0, [&] {
    const std::uint32_t thread = hw::thread_index();
    for (std::uint32_t mask : {1u, 2u, 16u, 31u}) {
      words[thread] = hw::shuffle_xor(thread * 3, mask);
      EXPECT_EQ(words[thread], (thread ^ mask) * 3);
    }
    floats[thread] = hw::shuffle_xor(static_cast<float>(thread) + 0.5f, 4);
  });
  EXPECT_TRUE(report.ok()) << report.text();
  for (int t = 0; t < 64; ++t) EXPECT_EQ(floats[t], static_cast<float>(t ^ 4) + 0.5f);
}

TEST_P(Verbs, VotesSeeEveryLaneOfTheWarp) {
  std::vector<int> votes(64);
  const Report report = run(64, 0, [&] {
    const std::uint32_t thread = hw::thread_index();
    EXPECT_FALSE(hw::any_lane(false));
    votes[thread] = hw::any_lane(thread == 40) ? 1 : 0;
    EXPECT_TRUE(hw::any_lane(true));
  });
  EXPECT_TRUE(report.ok()) << report.text();
  for (int t = 0; t < 64; ++t) EXPECT_EQ(votes[t], t / 32);
}

TEST_P(Verbs, BlockBarrierOrdersOrdinaryStoresAndLoads) {
  struct Shared {
    std::uint32_t value[128];
  };
  std::vector<std::uint32_t> seen(128);
  const Report report = run(128, sizeof(Shared), [&] {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t thread = hw::thread_index();
    shared.value[thread] = thread * thread;
    hw::sync_block();
    seen[thread] = shared.value[127 - thread];
  });
  EXPECT_TRUE(report.ok()) << report.text();
  for (std::uint32_t t = 0; t < 128; ++t) EXPECT_EQ(seen[t], (127 - t) * (127 - t));
}

TEST_P(Verbs, NamedBarriersPassTheTurnBetweenWarpgroups) {
  struct Shared {
    std::uint32_t rounds;
  };
  const Report report = run(256, sizeof(Shared), [&] {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t own = hw::warpgroup_index();
    if (hw::thread_index() == 0) shared.rounds = 0;
    if (own == 0) hw::arrive_named(2, 256);  // the second warpgroup goes first
    for (int i = 0; i < 5; ++i) {
      hw::sync_named(1 + own, 256);
      if (hw::thread_index() % 128 == 0) {
        EXPECT_EQ(shared.rounds, 2u * i + 1 - own);
        ++shared.rounds;
      }
      hw::arrive_named(2 - own, 256);
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST_P(Verbs, BarrierPhasesCountArrivals) {
  struct Shared {
    hw::Barrier full, empty;
    std::uint32_t value;
  };
  std::vector<std::uint32_t> seen;
  const Report report = run(64, sizeof(Shared), [&] {
    auto& shared = hw::shared_memory<Shared>();
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.full, 32);
      hw::barrier_init(shared.empty, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    for (std::uint32_t round = 0; round < 6; ++round) {
      if (hw::thread_index() < 32) {
        hw::barrier_wait(shared.empty, (round & 1) ^ 1);  // passes at once in the first round
        if (hw::thread_index() == 5) shared.value = 10 * round;
        hw::barrier_arrive(shared.full);
      } else if (hw::thread_index() == 40) {
        hw::barrier_wait(shared.full, round & 1);
        seen.push_back(shared.value);
        hw::barrier_arrive(shared.empty);
      }
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{0, 10, 20, 30, 40, 50}));
}

TEST_P(Verbs, TraceShowsWaitsInTheRoleOfTheThread) {
  struct Shared {
    hw::Barrier full;
  };
  hw::sim::Trace trace;
  LaunchConfig config;
  config.shared_bytes = sizeof(Shared);
  config.policy = GetParam();
  config.trace = &trace;
  const Report report = hw::sim::launch(config, [] {
    auto& shared = hw::shared_memory<Shared>();
    hw::set_role("consumer");
    if (hw::thread_index() == 0) hw::barrier_init(shared.full, 1);
    hw::sync_block();
    if (hw::thread_index() == 0) hw::barrier_wait(shared.full, 0);
    if (hw::thread_index() == 64) hw::barrier_arrive(shared.full);
  });
  EXPECT_TRUE(report.ok()) << report.text();
  const auto waits = [](const hw::sim::Trace::Span& span) {
    return span.row == "block 0, warpgroup 0 (consumer)" && span.what == "waits: barrier 0" &&
           span.begin < span.end;
  };
  // Whether the thread has to wait at all is up to the schedule; threads in turn make it.
  const auto count = std::count_if(trace.spans().begin(), trace.spans().end(), waits);
  EXPECT_TRUE(GetParam() == Policy::eager ? count == 1 : count <= 1);
}

TEST_P(Verbs, RegistersMoveThroughThePool) {
  const Report report = run(384, 0, [&] {
    if (hw::warpgroup_index() == 0) {
      hw::release_registers<24>();
    } else {
      hw::acquire_registers<240>();
    }
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(Arithmetic, IsWithinTheContract) {
  for (float x : {-30.f, -1.5f, -0.f, 0.25f, 3.f}) {
    EXPECT_FLOAT_EQ(hw::exp2(x), static_cast<float>(std::exp2(static_cast<double>(x))));
    EXPECT_NEAR(hw::tanh(x), std::tanh(static_cast<double>(x)), 1e-6 * std::abs(std::tanh(x)));
  }
  EXPECT_EQ(hw::exp2(-INFINITY), 0.f);
  EXPECT_FLOAT_EQ(hw::log2(10.f), 3.3219280949f);
  EXPECT_FLOAT_EQ(hw::reciprocal(3.f), 1.f / 3);
  EXPECT_EQ(hw::fma(2.f, 3.f, 4.f), 10.f);
  EXPECT_EQ(hw::max(2.f, -3.f), 2.f);
  EXPECT_EQ(hw::pack<hw::Operand::bf16>(1.f, -2.f), 0xc0003f80u);
  EXPECT_EQ(hw::pack<hw::Operand::fp16>(1.f, -2.f), 0xc0003c00u);
}

TEST_P(Verbs, GlobalStoresWriteWhatTheyAreGiven) {
  alignas(16) std::uint32_t words[8] = {};
  float value = 0;
  const Report report = run(32, 0, [&] {
    if (hw::thread_index() != 3) return;
    hw::store_global(words + 4, {1, 2, 3, 4});
    hw::store_global(&value, 2.5f);
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(words[3], 0u);
  EXPECT_EQ(words[4], 1u);
  EXPECT_EQ(words[7], 4u);
  EXPECT_EQ(value, 2.5f);
}

}  // namespace
}  // namespace tandem
