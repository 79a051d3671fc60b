// Rules on threads and memory (docs/simulator.md): a small kernel that breaks each, and the fault that names
// it, under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

using ThreadFaults = Faults;
INSTANTIATE_TEST_SUITE_P(Policies, ThreadFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(ThreadFaults, AWarpWhoseLanesTakeDifferentBranches) {
  expect(Rule::divergence, [] {
    if (hw::thread_index() % 2 == 0) {
      hw::wgmma_fence();
    } else {
      hw::wgmma_commit();
    }
  });
}

TEST_P(ThreadFaults, LanesThatExecuteAVerbOnBothSidesOfABranch) {
  expect(
      Rule::divergence,
      [] {
        if (hw::thread_index() % 2 == 0) {
          sink = 1;
          hw::wgmma_fence();
        } else {
          hw::wgmma_fence();
          sink = 2;
        }
      },
      "at another place");
}

TEST_P(ThreadFaults, NoneWhereLanesShuffleOnBothSidesOfABranch) {
  expect_none([] {  // neither shfl.sync nor bar.warp.sync asks for one place
    if (hw::thread_index() % 2 == 0) {
      sink = hw::shuffle_xor(1.f, 1);
      hw::sync_warp();
    } else {
      sink = 2 * hw::shuffle_xor(2.f, 1);
      hw::sync_warp();
    }
  });
}

TEST_P(ThreadFaults, WarpsOfAWarpgroupThatReleaseRegistersAtDifferentPlaces) {
  expect(
      Rule::divergence,
      [] {
        if (hw::warp_index() == 1) {
          sink = 1;
          hw::release_registers<40>();
        } else {
          hw::release_registers<40>();
        }
      },
      "at another place");
}

TEST_P(ThreadFaults, WarpsOfAWarpgroupThatStartAProductAtDifferentPlaces) {
  expect(
      Rule::divergence,
      [] {
        fill_tiles();
        hw::fence_async_proxy();
        hw::sync_block();
        float d[32];
        hw::wgmma_fence();
        if (hw::warp_index() == 2) {
          sink = 1;
          multiply(d);
          sink = 2;
        } else {
          multiply(d);
        }
        hw::wgmma_wait<0>();
      },
      "at another place");
}

TEST_P(ThreadFaults, AnElectionThatSomeLanesMiss) {
  expect(Rule::divergence, [] {
    if (hw::lane_index() < 16) sink = static_cast<float>(hw::elect_one());
  });
}

TEST_P(ThreadFaults, WarpsOfAWarpgroupThatStartDifferentProducts) {
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

TEST_P(ThreadFaults, ShuffleWithALaneThatHasLeft) {
  expect(Rule::inactive_lane, [] {
    if (hw::lane_index() != 9) sink = hw::shuffle_xor(1.f, 1);
  });
}

TEST_P(ThreadFaults, MoreRegistersThanThePoolEverHas) {
  config_.threads = 384;
  expect(Rule::register_pool, [] {
    if (hw::warpgroup_index() == 0) {
      hw::release_registers<40>();
    } else {
      hw::acquire_registers<240>();
    }
  });
}

TEST_P(ThreadFaults, ReleasingRegistersThatAreNotHeld) {
  config_.registers_per_thread = 128;
  expect(Rule::register_pool, [] { hw::release_registers<160>(); });
}

TEST_P(ThreadFaults, RegistersThatTheLaunchDidNotGetAreNotInThePool) {
  config_.threads = 384;  // of 168 registers each; 1024 of the file are left
  expect(
      Rule::register_pool,
      [] {
        if (hw::warpgroup_index() == 0) {
          hw::release_registers<32>();
        } else {
          hw::acquire_registers<240>();
        }
      },
      "waits for 72 registers");
}

TEST_P(ThreadFaults, AcquiringFewerRegistersThanAreHeld) {
  config_.registers_per_thread = 128;
  expect(Rule::register_pool, [] { hw::acquire_registers<96>(); });
}

TEST_P(ThreadFaults, OneWarpOfAWarpgroupThatReleasesRegisters) {
  expect(
      Rule::divergence,
      [] {
        if (hw::warp_index() == 1) hw::release_registers<40>();
      },
      "only 32 threads of warpgroup 0 came to a release_registers");
}

TEST_P(ThreadFaults, WarpsOfAWarpgroupThatReleaseDifferentNumbersOfRegisters) {
  expect(Rule::divergence, [] {
    if (hw::warp_index() == 1) {
      hw::release_registers<40>();
    } else {
      hw::release_registers<48>();
    }
  });
}

TEST_P(ThreadFaults, RegistersChangedAgainBeforeTheWarpgroupHasMet) {
  const auto kernel = [](bool barrier) {
    hw::release_registers<48>();
    if (barrier) hw::sync_block();
    hw::release_registers<40>();
  };
  expect(
      Rule::register_pool, [&] { kernel(false); }, "without knowing");
  expect_none([&] { kernel(true); });
}

TEST_P(ThreadFaults, SharedStoreAndLoadWithoutABarrier) {
  expect(Rule::shared_race, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_block();
    shared().words[hw::thread_index()] = 2;
    hw::sync_warp();  // a barrier for other threads than those that exchange
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 32]);
  });
}

TEST_P(ThreadFaults, TwoThreadsThatStoreToTheSamePlace) {
  expect(
      Rule::shared_race, [] { shared().words[hw::thread_index() / 2] = 1; }, "writes");
}

TEST_P(ThreadFaults, SharedStoreOverAValueThatOthersMayStillRead) {
  expect(Rule::shared_race, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_block();
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 64]);
    shared().words[hw::thread_index()] = 2;  // a loop without its barrier at the end
  });
}

TEST_P(ThreadFaults, TwoBlocksThatStoreToTheSamePlace) {
  std::vector<float> output(256);
  config_.buffers = {Buffer{output.data(), output.size() * sizeof(float), "output", true}};
  config_.blocks = 2;
  expect(
      Rule::global_race, [&] { hw::store_global(&output[hw::thread_index()], 1.f); }, "output");
}

TEST_P(ThreadFaults, SharedMemoryThatNobodyWrote) {
  expect(Rule::uninitialised_shared, [] { sink = static_cast<float>(shared().words[hw::thread_index()]); });
}

TEST_P(ThreadFaults, OrdinaryAccessBeyondSharedMemory) {
  expect(Rule::shared_bounds, [] { (&shared() + 1)->words[hw::thread_index()] = 1; });
}

TEST_P(ThreadFaults, SharedAccessesThatAreNotAligned) {
  __extension__ using SixteenBytes = unsigned __int128;
  const auto place = [] {
    return reinterpret_cast<unsigned char*>(shared().words) + 32 * hw::thread_index() % 512;
  };
  expect(
      Rule::shared_bounds, [&] { *reinterpret_cast<volatile SixteenBytes*>(place() + 8) = 1; },
      "accesses 16 bytes");
  expect(
      Rule::shared_bounds, [&] { *reinterpret_cast<volatile std::uint64_t*>(place() + 4) = 1; },
      "accesses 8 bytes");
}

TEST_P(ThreadFaults, DescriptorThatLeadsBeyondSharedMemory) {
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

TEST_P(ThreadFaults, GlobalStoreOutsideOfTheBuffers) {
  std::vector<float> output(128);
  config_.buffers = {Buffer{output.data(), 100 * sizeof(float), "output", true}};
  expect(Rule::global_bounds, [&] { hw::store_global(&output[hw::thread_index()], 1.f); });
}

TEST_P(ThreadFaults, CopyFromOutsideOfTheBuffers) {
  config_.buffers = {Buffer{tensor_, 50 * 128, "k", false}};
  expect(Rule::global_bounds, [&] {
    init();
    if (!first_thread()) return;
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(ThreadFaults, SlotThatIsNeverReleased) {
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

TEST_P(ThreadFaults, NamedBarrierThatTooFewThreadsReach) {
  expect(
      Rule::deadlock,
      [] {
        if (hw::warp_index() < 3) hw::sync_named(3, 128);
      },
      "named barrier 3, where 96 of 128 threads are");
}

TEST_P(ThreadFaults, BarrierThatNobodyInitialised) {
  expect(Rule::bad_barrier, [] { hw::barrier_arrive(shared().full); });
}

TEST_P(ThreadFaults, BarrierUsedWithoutKnowingItsInitialisation) {
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

TEST_P(ThreadFaults, MoreArrivalsThanTheBarrierCounts) {
  expect(Rule::bad_barrier, [] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().full, 64);
    hw::barrier_arrive(shared().full);
  });
}

TEST_P(ThreadFaults, BarrierTreatedAsMemory) {
  expect(Rule::bad_barrier, [] {
    init();
    if (first_thread()) shared().full.state = 0;
  });
}

TEST_P(ThreadFaults, TensorMapThatWasNeverEncoded) {
  map_ = {};
  expect(Rule::bad_descriptor, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
  });
}

TEST_P(ThreadFaults, CopyToAMisalignedPlace) {
  expect(Rule::bad_argument, [&] {
    init();
    if (first_thread()) load_expected(&shared().a[0][32]);
  });
}

TEST_P(ThreadFaults, CopyFromAColumnBetweenStepsOf16Bytes) {
  expect(Rule::bad_argument, [&] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    hw::load_box(shared().a, map_, shared().full, {4, 0, 0, 0});
  });
}

TEST_P(ThreadFaults, ProductThatNobodyWaitsFor) {
  expect(Rule::unfinished, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
  });
}

TEST_P(ThreadFaults, CopyThatNobodyWaitsFor) {
  expect(Rule::unfinished, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
  });
}

}  // namespace
}  // namespace tandem
