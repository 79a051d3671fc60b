// Rules on asynchronous work (docs/simulator.md): a small kernel that breaks each, and the fault that names
// it, under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

INSTANTIATE_TEST_SUITE_P(Policies, Faults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

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

TEST_P(Faults, BytesWrittenBeforeTheirBarrier) {
  expect(
      Rule::use_before_wait,
      [&] {
        init();
        if (first_thread()) {
          load_expected(shared().a);
          shared().a[0][0] = 0;
        }
      },
      "may still write");
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

TEST_P(Faults, FragmentReadBeforeTheWait) {
  expect(
      Rule::use_before_wait,
      [] {
        fill_tiles();
        hw::fence_async_proxy();
        hw::sync_block();
        float d[32];
        std::uint32_t a[4] = {1, 2, 3, 4};
        hw::wgmma_fence();
        hw::wgmma_rs<Operand::bf16, 64, Major::k>(d, a, descriptor(shared().b), Accumulate::overwrite);
        hw::wgmma_commit();
        sink = static_cast<float>(a[2]);
        hw::wgmma_wait<0>();
        sink = d[0];
      },
      "reads an A fragment");
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

}  // namespace
}  // namespace tandem
