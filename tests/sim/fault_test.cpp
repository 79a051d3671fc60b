// Every rule of docs/simulator.md: a small kernel that breaks it, and the fault that names it, under every
// policy.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "hw/hw.h"
#include "hw/sim/machine.h"

namespace tandem {
namespace {

using hw::Accumulate;
using hw::Major;
using hw::MatrixDescriptor;
using hw::Operand;
using hw::Swizzle;
using hw::sim::Buffer;
using hw::sim::LaunchConfig;
using hw::sim::Policy;
using hw::sim::Report;
using hw::sim::Rule;

constexpr std::uint32_t tile_bytes = 64 * 64 * 2;

struct Shared {
  alignas(1024) std::uint16_t a[64][64];
  alignas(1024) std::uint16_t b[64][64];
  hw::Barrier full, empty;
  std::uint32_t words[256];
};

class Faults : public testing::TestWithParam<Policy> {
 protected:
  Faults() : memory_(64 * 64 * 2 + 8, 0x3f80) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    tensor_ = memory_.data() + (16 - address % 16) % 16 / 2;
    hw::sim::TensorMapSpec spec{
        .address = tensor_, .dims = {64, 128, 1, 1}, .stride_bytes = {128, 128, 128}, .box = {64, 64, 1, 1}};
    map_ = hw::sim::encode_tensor_map(spec);
    config_.shared_bytes = sizeof(Shared);
    config_.policy = GetParam();
    config_.seed = 11;
    config_.replay = "the command";
  }

  /// The launch has to end with this fault, naming a line of this file, the policy, the seed and the replay
  /// command.
  void expect(Rule rule, const std::function<void()>& body, const std::string& words = "") {
    expect_one_of({rule}, body, words);
  }
  /// The same where it depends on the order of threads which of two faults comes first.
  void expect_one_of(const std::vector<Rule>& rules, const std::function<void()>& body,
                     const std::string& words = "") {
    const Report report = hw::sim::launch(config_, body);
    ASSERT_FALSE(report.ok()) << "no fault; expected " << hw::sim::name_of(rules[0]);
    EXPECT_NE(std::find(rules.begin(), rules.end(), report.fault->rule), rules.end()) << report.text();
    EXPECT_NE(report.text().find("tests/sim/fault_test.cpp:"), std::string::npos) << report.text();
    EXPECT_NE(report.text().find(words), std::string::npos) << report.text();
    EXPECT_NE(report.text().find("seed 11"), std::string::npos) << report.text();
    EXPECT_NE(report.text().find("replay: the command"), std::string::npos) << report.text();
  }
  void expect_none(const std::function<void()>& body) {
    const Report report = hw::sim::launch(config_, body);
    EXPECT_TRUE(report.ok()) << report.text();
  }

  static Shared& shared() { return hw::shared_memory<Shared>(); }
  static bool first_thread() { return hw::thread_index() == 0; }
  static MatrixDescriptor descriptor(const void* tile) {
    return MatrixDescriptor::make(hw::shared_address(tile), 0, 1024, Swizzle::bytes128);
  }
  /// Barriers for one producer thread and `consumers` releases.
  static void init(std::uint32_t consumers = 1) {
    if (first_thread()) {
      hw::barrier_init(shared().full, 1);
      hw::barrier_init(shared().empty, consumers);
      hw::fence_barrier_init();
    }
    hw::sync_block();
  }
  void load(void* tile) const { hw::load_box(tile, map_, shared().full, {0, 0, 0, 0}); }
  void load_expected(void* tile) const {
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    load(tile);
  }
  /// All threads fill both tiles with ordinary stores.
  static void fill_tiles() {
    const std::uint32_t thread = hw::thread_index();
    for (std::uint32_t i = thread; i < 64 * 64; i += 128) {
      shared().a[i / 64][i % 64] = 0x3f80;
      shared().b[i / 64][i % 64] = 0x3f80;
    }
  }
  static void multiply(float (&d)[32]) {
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(shared().a), descriptor(shared().b),
                                              Accumulate::overwrite);
    hw::wgmma_commit();
  }

  LaunchConfig config_;
  hw::TensorMap map_;
  std::vector<std::uint16_t> memory_;
  const std::uint16_t* tensor_;
};

INSTANTIATE_TEST_SUITE_P(Policies, Faults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

/// Keeps what is read into it.
volatile float sink;

TEST_P(Faults, NoneInACorrectKernel) {
  expect_none([&] {
    init(128);
    for (std::uint32_t round = 0; round < 3; ++round) {
      if (first_thread()) {
        hw::barrier_wait(shared().empty, (round & 1) ^ 1);
        hw::barrier_arrive_expecting(shared().full, 2 * tile_bytes);
        load(shared().a);
        load(shared().b);
      }
      hw::sync_warp();
      hw::barrier_wait(shared().full, round & 1);
      float d[32];
      hw::wgmma_fence();
      multiply(d);
      hw::wgmma_wait<0>();
      EXPECT_EQ(d[5], 16.f);
      hw::barrier_arrive(shared().empty);
    }
  });
}

TEST_P(Faults, AccumulatorsReadBeforeTheWait) {
  expect(
      Rule::use_before_wait,
      [] {
        fill_tiles();
        hw::fence_async_proxy();
        hw::sync_block();
        float d[32];
        hw::wgmma_fence();
        multiply(d);
        sink = d[3];
        hw::wgmma_wait<0>();
      },
      "reads an accumulator");
}

TEST_P(Faults, AccumulatorsWrittenBeforeTheWait) {
  expect(Rule::use_before_wait, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    d[7] *= 2;
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, AWaitThatLeavesTheGroupPendingIsNoWait) {
  expect(Rule::use_before_wait, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::wgmma_wait<1>();
    sink = d[0];
  });
}

TEST_P(Faults, BytesReadBeforeTheirBarrier) {
  expect(
      Rule::use_before_wait,
      [&] {
        init();
        if (first_thread()) {
          load_expected(shared().a);
          sink = shared().a[0][0];
        }
      },
      "in phase 0 of barrier 0");
}

TEST_P(Faults, ProductOfBytesThatHaveNotLanded) {
  expect(
      Rule::use_before_wait,
      [&] {
        fill_tiles();
        hw::fence_async_proxy();
        init();
        if (first_thread()) load_expected(shared().a);
        hw::sync_block();
        float d[32];
        hw::wgmma_fence();
        multiply(d);
        hw::wgmma_wait<0>();
      },
      "starts a WGMMA");
}

TEST_P(Faults, AParityThatIsNeverFlippedPassesTooEarly) {
  expect_one_of({Rule::use_before_wait, Rule::wrong_phase}, [&] {
    init();
    for (std::uint32_t round = 0; round < 2; ++round) {
      if (first_thread()) {
        hw::barrier_wait(shared().empty, (round & 1) ^ 1);
        load_expected(shared().a);
      } else if (hw::thread_index() == 64) {
        hw::barrier_wait(shared().full, 0);
        sink = shared().a[1][1];
        hw::barrier_arrive(shared().empty);
      }
    }
  });
}

TEST_P(Faults, SlotReleasedBeforeItsReadersAreDone) {
  config_.threads = 256;
  expect_one_of({Rule::operand_overwritten, Rule::use_before_wait}, [&] {
    if (hw::warpgroup_index() == 0) fill_tiles();
    hw::fence_async_proxy();
    init();
    if (hw::warpgroup_index() == 0) {
      float d[32];
      hw::wgmma_fence();
      multiply(d);
      if (first_thread()) hw::barrier_arrive(shared().empty);  // belongs behind the wait
      hw::wgmma_wait<0>();
    } else if (hw::thread_index() == 128) {
      hw::barrier_wait(shared().empty, 0);
      load_expected(shared().b);
      hw::barrier_wait(shared().full, 0);
    }
  });
}

TEST_P(Faults, OperandOverwrittenByOrdinaryStores) {
  expect(Rule::operand_overwritten, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::sync_block();
    shared().b[hw::thread_index() / 64][hw::thread_index() % 64] = 0;
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, FragmentOverwrittenBeforeTheWait) {
  expect(
      Rule::operand_overwritten,
      [] {
        fill_tiles();
        hw::fence_async_proxy();
        hw::sync_block();
        float d[32];
        std::uint32_t a[4] = {1, 2, 3, 4};
        hw::wgmma_fence();
        hw::wgmma_rs<Operand::bf16, 64, Major::k>(d, a, descriptor(shared().b), Accumulate::overwrite);
        hw::wgmma_commit();
        a[2] = hw::thread_index();
        hw::wgmma_wait<0>();
        sink = d[0];
      },
      "A fragment");
}

TEST_P(Faults, BarrierThatRunsPastAWaiter) {
  if (GetParam() != Policy::random) GTEST_SKIP() << "takes a schedule in which the waiter is late";
  expect(Rule::wrong_phase, [] {
    init();
    if (hw::thread_index() == 64) hw::barrier_wait(shared().full, 0);
    if (hw::thread_index() == 96) {
      for (int i = 0; i < 50; ++i) {  // nobody makes it wait for the other thread
        hw::barrier_arrive(shared().full);
        hw::barrier_wait(shared().empty, 1);
      }
    }
  });
}

TEST_P(Faults, FewerBytesExpectedThanCome) {
  expect(Rule::transaction_mismatch, [&] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    load(shared().a);
    load(shared().b);
    hw::barrier_wait(shared().full, 0);
    hw::barrier_wait(shared().empty, 1);
  });
}

TEST_P(Faults, MoreBytesExpectedThanCome) {
  expect(
      Rule::transaction_mismatch,
      [&] {
        init();
        if (!first_thread()) return;
        hw::barrier_arrive_expecting(shared().full, 2 * tile_bytes);
        load(shared().a);
        hw::barrier_wait(shared().full, 0);
      },
      "8192 bytes");
}

TEST_P(Faults, OrdinaryStoresNotFencedForAProduct) {
  expect(Rule::missing_proxy_fence, [] {
    fill_tiles();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, OrdinaryStoresNotFencedForACopyOverThem) {
  expect(Rule::missing_proxy_fence, [&] {
    fill_tiles();
    init();
    if (!first_thread()) return;
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(Faults, BarrierInitialisationNotFenced) {
  expect(Rule::missing_barrier_fence, [&] {
    if (first_thread()) hw::barrier_init(shared().full, 1);
    hw::sync_block();
    if (!first_thread()) return;
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(Faults, NoWgmmaFenceAtAll) {
  expect(Rule::missing_wgmma_fence, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    multiply(d);
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, NoWgmmaFenceAfterTouchingAccumulators) {
  expect(
      Rule::missing_wgmma_fence,
      [] {
        fill_tiles();
        hw::fence_async_proxy();
        hw::sync_block();
        float d[32] = {};
        hw::wgmma_fence();
        multiply(d);
        hw::wgmma_wait<0>();
        for (float& x : d) x *= 0.5f;
        multiply(d);
        hw::wgmma_wait<0>();
      },
      "accumulators");
}

TEST_P(Faults, AWarpWhoseLanesTakeDifferentBranches) {
  expect(Rule::divergence, [] {
    if (hw::thread_index() % 2 == 0) {
      hw::wgmma_fence();
    } else {
      hw::wgmma_commit();
    }
  });
}

TEST_P(Faults, AnElectionThatSomeLanesMiss) {
  expect(Rule::divergence, [] {
    if (hw::lane_index() < 16) sink = static_cast<float>(hw::elect_one());
  });
}

TEST_P(Faults, WarpsOfAWarpgroupThatStartDifferentProducts) {
  expect(Rule::divergence, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    const void* a = hw::warp_index() == 2 ? &shared().b : &shared().a;
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(a), descriptor(shared().b),
                                              Accumulate::overwrite);
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, ShuffleWithALaneThatHasLeft) {
  expect(Rule::inactive_lane, [] {
    if (hw::lane_index() != 9) sink = hw::shuffle_xor(1.f, 1);
  });
}

TEST_P(Faults, MoreRegistersThanThePoolEverHas) {
  config_.threads = 384;
  expect(Rule::register_pool, [] {
    if (hw::warpgroup_index() == 0) {
      hw::release_registers<40>();
    } else {
      hw::acquire_registers<240>();
    }
  });
}

TEST_P(Faults, ReleasingRegistersThatAreNotHeld) {
  config_.registers_per_thread = 128;
  expect(Rule::register_pool, [] { hw::release_registers<160>(); });
}

TEST_P(Faults, SharedStoreAndLoadWithoutABarrier) {
  expect_one_of({Rule::shared_race, Rule::uninitialised_shared}, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_warp();
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 32]);
  });
}

TEST_P(Faults, SharedStoreOverAValueThatOthersMayStillRead) {
  expect(Rule::shared_race, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_block();
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 64]);
    shared().words[hw::thread_index()] = 2;  // a loop without its barrier at the end
  });
}

TEST_P(Faults, TwoBlocksThatStoreToTheSamePlace) {
  std::vector<float> output(256);
  config_.buffers = {Buffer{output.data(), output.size() * sizeof(float), "output", true}};
  config_.blocks = 2;
  expect(
      Rule::global_race, [&] { hw::store_global(&output[hw::thread_index()], 1.f); }, "output");
}

TEST_P(Faults, SharedMemoryThatNobodyWrote) {
  expect(Rule::uninitialised_shared, [] { sink = static_cast<float>(shared().words[hw::thread_index()]); });
}

TEST_P(Faults, OrdinaryAccessBeyondSharedMemory) {
  expect(Rule::shared_bounds, [] { (&shared() + 1)->words[hw::thread_index()] = 1; });
}

TEST_P(Faults, DescriptorThatLeadsBeyondSharedMemory) {
  expect(Rule::shared_bounds, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    const auto b = MatrixDescriptor::make(hw::shared_address(shared().b), 0, 1 << 15, Swizzle::bytes128);
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(shared().a), b, Accumulate::overwrite);
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
  });
}

TEST_P(Faults, GlobalStoreOutsideOfTheBuffers) {
  std::vector<float> output(128);
  config_.buffers = {Buffer{output.data(), 100 * sizeof(float), "output", true}};
  expect(Rule::global_bounds, [&] { hw::store_global(&output[hw::thread_index()], 1.f); });
}

TEST_P(Faults, CopyFromOutsideOfTheBuffers) {
  config_.buffers = {Buffer{tensor_, 50 * 128, "k", false}};
  expect(Rule::global_bounds, [&] {
    init();
    if (!first_thread()) return;
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(Faults, SlotThatIsNeverReleased) {
  expect(
      Rule::deadlock,
      [&] {
        init();
        hw::set_role("producer");
        for (std::uint32_t round = 0; round < 2; ++round) {
          if (first_thread()) {
            hw::barrier_wait(shared().empty, (round & 1) ^ 1);
            load_expected(shared().a);
          } else if (hw::thread_index() == 64) {
            hw::set_role("consumer");
            hw::barrier_wait(shared().full, round & 1);
          }
        }
      },
      "(producer) waits for parity 0 of barrier 1");
}

TEST_P(Faults, NamedBarrierThatTooFewThreadsReach) {
  expect(
      Rule::deadlock,
      [] {
        if (hw::warp_index() < 3) hw::sync_named(3, 128);
      },
      "named barrier 3, where 96 of 128 threads are");
}

TEST_P(Faults, BarrierThatNobodyInitialised) {
  expect(Rule::bad_barrier, [] { hw::barrier_arrive(shared().full); });
}

TEST_P(Faults, BarrierUsedWithoutKnowingItsInitialisation) {
  config_.threads = 64;
  expect(Rule::shared_race, [] {
    // Whoever comes second uses what the first made, without a barrier between them.
    static bool made;
    if (hw::thread_index() == 0) made = false;
    hw::sync_block();
    if (hw::lane_index() != 0) return;
    if (!made) {
      made = true;
      hw::barrier_init(shared().full, 1);
      hw::fence_barrier_init();
    } else {
      hw::barrier_arrive(shared().full);
    }
  });
}

TEST_P(Faults, MoreArrivalsThanTheBarrierCounts) {
  expect(Rule::bad_barrier, [] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().full, 64);
    hw::barrier_arrive(shared().full);
  });
}

TEST_P(Faults, BarrierTreatedAsMemory) {
  expect(Rule::bad_barrier, [] {
    init();
    if (first_thread()) shared().full.state = 0;
  });
}

TEST_P(Faults, TensorMapThatWasNeverEncoded) {
  map_ = {};
  expect(Rule::bad_descriptor, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
  });
}

TEST_P(Faults, CopyToAMisalignedPlace) {
  expect(Rule::bad_argument, [&] {
    init();
    if (first_thread()) load_expected(&shared().a[1][0]);
  });
}

TEST_P(Faults, ProductThatNobodyWaitsFor) {
  expect(Rule::unfinished, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
  });
}

TEST_P(Faults, CopyThatNobodyWaitsFor) {
  expect(Rule::unfinished, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
  });
}

}  // namespace
}  // namespace tandem
