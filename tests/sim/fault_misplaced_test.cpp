// Each rule's remedy is there, but in the wrong place (docs/simulator.md): a fence before the stores that it
// is for, a wait behind the use. Under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

class Misplaced : public Faults {
 protected:
  static void store_tile_part() { shared().a[hw::thread_index() / 64][hw::thread_index() % 64] = 0x3f80; }
  static void multiply_and_wait() {
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::wgmma_wait<0>();
  }
  /// Tiles that products and stores may read.
  static void prepare() {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, Misplaced, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

// ---- missing-proxy-fence

TEST_P(Misplaced, ProxyFenceBeforeTheStoresThatItIsFor) {
  expect(Rule::missing_proxy_fence, [] {
    hw::fence_async_proxy();
    fill_tiles();
    hw::sync_block();
    multiply_and_wait();
  });
}

TEST_P(Misplaced, ProxyFenceAmidTheStoresThatItIsFor) {
  expect(Rule::missing_proxy_fence, [] {
    prepare();
    hw::fence_async_proxy();
    store_tile_part();
    hw::sync_block();
    multiply_and_wait();
  });
}

TEST_P(Misplaced, ProxyFenceBeforeTheMatricesThatItIsFor) {
  expect(Rule::missing_proxy_fence, [] {
    prepare();
    hw::fence_async_proxy();
    hw::store_matrices<1>(&shared().a[16 * hw::warp_index() + hw::lane_index() % 8][0], {0u});
    hw::sync_block();
    multiply_and_wait();
  });
}

TEST_P(Misplaced, ProxyFenceOfAThreadThatDoesNotKnowOfTheStoresYet) {
  expect(Rule::missing_proxy_fence, [&] {
    prepare();
    store_tile_part();
    if (first_thread()) hw::fence_async_proxy();  // belongs behind the barrier, or into every thread
    hw::sync_block();
    if (!first_thread()) return;
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
    hw::wait_stores_read<0>();
  });
}

TEST_P(Misplaced, ProxyFenceOfAThreadThatIssuesNothing) {
  expect(Rule::missing_proxy_fence, [&] {
    prepare();
    store_tile_part();
    hw::sync_block();
    if (hw::thread_index() == 64) hw::fence_async_proxy();
    if (!first_thread()) return;
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
    hw::wait_stores_read<0>();
  });
}

TEST_P(Misplaced, ProxyFenceBehindTheStoreOfABoxThatItIsFor) {
  expect(Rule::missing_proxy_fence, [&] {
    fill_tiles();
    hw::sync_block();
    if (!first_thread()) return;
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::fence_async_proxy();
    hw::commit_stores();
    hw::wait_stores_read<0>();
  });
}

TEST_P(Misplaced, ProxyFenceBeforeTheStoresThatACopyOverwrites) {
  expect(Rule::missing_proxy_fence, [&] {
    hw::fence_async_proxy();
    fill_tiles();
    init();
    if (!first_thread()) return;
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(Misplaced, NoneWhereTheIssuerFencesBehindTheBarrier) {
  expect_none([&] {
    fill_tiles();
    hw::sync_block();
    if (!first_thread()) return;
    hw::fence_async_proxy();
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
    hw::wait_stores<0>();
  });
}

// ---- use-before-wait, operand-overwritten

TEST_P(Misplaced, CommitBehindTheWait) {
  expect(Rule::use_before_wait, [] {
    prepare();
    float d[32];
    hw::wgmma_fence();
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(shared().a), descriptor(shared().b),
                                              Accumulate::overwrite);
    hw::wgmma_wait<0>();
    hw::wgmma_commit();
    sink = d[0];
  });
}

TEST_P(Misplaced, BarrierWaitBehindTheRead) {
  expect(Rule::use_before_wait, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
    hw::sync_block();
    sink = shared().a[0][hw::thread_index() % 64];
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(Misplaced, CommitOfAStoreBehindItsWait) {
  expect(Rule::operand_overwritten, [&] {
    prepare();
    if (!first_thread()) return;
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::wait_stores_read<0>();
    hw::commit_stores();
    shared().a[9][9] = 1;
  });
}

TEST_P(Misplaced, WaitForAStoreBehindTheBarrierThatTellsOfIt) {
  expect(Rule::operand_overwritten, [&] {
    prepare();
    if (first_thread()) {
      hw::store_box(map_, {0, 0, 0, 0}, shared().a);
      hw::commit_stores();
    }
    hw::sync_block();
    if (first_thread()) hw::wait_stores_read<0>();
    shared().a[hw::thread_index() % 64][0] = 1;
  });
}

// ---- transaction-mismatch

TEST_P(Misplaced, BytesExpectedAtAnotherBarrier) {
  expect(Rule::transaction_mismatch, [&] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().empty, tile_bytes);
    hw::barrier_arrive(shared().full);
    load(shared().a);
    hw::barrier_wait(shared().empty, 0);
  });
}

TEST_P(Misplaced, BytesExpectedInThePhaseBehindTheirOwn) {
  expect(Rule::transaction_mismatch, [&] {
    init();
    if (!first_thread()) return;
    load(shared().a);
    hw::barrier_arrive(shared().full);
    hw::barrier_wait(shared().full, 0);
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    hw::barrier_wait(shared().full, 1);
  });
}

// ---- missing-barrier-fence, missing-wgmma-fence

TEST_P(Misplaced, BarrierFenceBeforeTheInitialisation) {
  expect(Rule::missing_barrier_fence, [&] {
    if (first_thread()) {
      hw::fence_barrier_init();
      hw::barrier_init(shared().full, 1);
    }
    hw::sync_block();
    if (first_thread()) load_expected(shared().a);
  });
}

TEST_P(Misplaced, BarrierFenceOfAnotherThread) {
  expect(Rule::missing_barrier_fence, [&] {
    if (first_thread()) hw::barrier_init(shared().full, 1);
    hw::sync_block();
    hw::fence_barrier_init();  // which is for the thread's own
    if (hw::thread_index() == 64) load_expected(shared().a);
  });
}

TEST_P(Misplaced, BarrierFenceThatTheIssuerHasNotHeardOf) {
  expect(Rule::missing_barrier_fence, [&] {
    if (first_thread()) hw::barrier_init(shared().full, 1);
    hw::sync_block();
    if (first_thread()) hw::fence_barrier_init();
    if (hw::thread_index() == 64) load_expected(shared().a);
  });
}

TEST_P(Misplaced, WgmmaFenceBeforeTheLastTouch) {
  expect(
      Rule::missing_wgmma_fence,
      [] {
        prepare();
        float d[32];
        hw::wgmma_fence();
        for (float& x : d) x = static_cast<float>(hw::thread_index());
        multiply(d);
        hw::wgmma_wait<0>();
        sink = d[0];
      },
      "accumulators");
}

// ---- register-pool, shared-race, uninitialised-shared

TEST_P(Misplaced, RegistersReleasedBehindTheWaitForThoseWhoAcquireThem) {
  config_.threads = 384;
  expect(Rule::register_pool, [] {
    if (hw::warpgroup_index() == 0) {
      hw::sync_named(1, 384);
      hw::release_registers<24>();
    } else {
      hw::acquire_registers<240>();
      hw::sync_named(1, 384);
    }
  });
}

TEST_P(Misplaced, BarrierBeforeTheStoresThatItIsFor) {
  expect(Rule::shared_race, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_block();
    shared().words[hw::thread_index()] = 2;
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 64]);
    hw::sync_block();
  });
}

TEST_P(Misplaced, ArrivalWithoutAWaitBeforeTheLoad) {
  expect(Rule::shared_race, [] {
    shared().words[hw::thread_index()] = 1;
    hw::sync_block();
    shared().words[hw::thread_index()] = 2;
    hw::arrive_named(1, 128);  // a sync_named belongs here
    sink = static_cast<float>(shared().words[hw::thread_index() ^ 64]);
  });
}

TEST_P(Misplaced, SharedLoadBeforeItsStore) {
  expect(Rule::uninitialised_shared, [] {
    sink = static_cast<float>(shared().words[hw::thread_index()]);
    shared().words[hw::thread_index()] = 1;
  });
}

// ---- global-race, early-access

TEST_P(Misplaced, BlockCountedBeforeItsThreadsMeet) {
  std::vector<float> partial(2 * 128);
  std::uint32_t counter = 0, arrived = 0;
  config_.blocks = 2;
  config_.buffers = {Buffer{partial.data(), partial.size() * sizeof(float), "partial", true},
                     Buffer{&counter, sizeof counter, "counter", true}};
  const auto kernel = [&](bool meet) {
    hw::store_global(&partial[hw::block_index() * 128 + hw::thread_index()], 1.f);
    if (meet) hw::sync_block();
    if (first_thread()) arrived = hw::atomic_add(&counter, 1);
    hw::sync_block();
    if (arrived == 0) return;
    for (std::uint32_t i = 0; i < 2; ++i) sink = hw::load_global(&partial[i * 128 + hw::thread_index()]);
  };
  expect(
      Rule::global_race, [&] { kernel(false); }, "partial");
  counter = arrived = 0;
  expect_none([&] { kernel(true); });
}

TEST_P(Misplaced, WaitForTheGridBeforeBehindTheStore) {
  std::vector<float> output(128);
  config_.early = true;
  config_.buffers = {Buffer{output.data(), output.size() * sizeof(float), "output", true}};
  expect(Rule::early_access, [&] {
    hw::store_global(&output[hw::thread_index()], 1.f);
    hw::wait_for_prior_grid();
  });
}

// ---- deadlock, bad-barrier, unfinished

TEST_P(Misplaced, ThreadsThatEachWaitBeforeTheyArrive) {
  expect(
      Rule::deadlock,
      [] {
        init();
        if (first_thread()) {
          hw::barrier_wait(shared().full, 0);
          hw::barrier_arrive(shared().empty);
        } else if (hw::thread_index() == 64) {
          hw::barrier_wait(shared().empty, 0);
          hw::barrier_arrive(shared().full);
        }
      },
      "waits for parity 0 of barrier 1");
}

TEST_P(Misplaced, InitialisationBehindTheUse) {
  expect(Rule::bad_barrier, [] {
    if (!first_thread()) return;
    hw::barrier_arrive(shared().full);
    hw::barrier_init(shared().full, 1);
  });
}

TEST_P(Misplaced, WaitBeforeTheProductThatItIsFor) {
  expect(Rule::unfinished, [] {
    prepare();
    float d[32];
    hw::wgmma_fence();
    hw::wgmma_wait<0>();
    multiply(d);
  });
}

TEST_P(Misplaced, WaitBeforeTheCopyThatItIsFor) {
  expect(Rule::unfinished, [&] {
    init();
    if (!first_thread()) return;
    hw::barrier_wait(shared().full, 1);
    load_expected(shared().a);
  });
}

TEST_P(Misplaced, WaitBeforeTheStoreThatItIsFor) {
  expect(Rule::unfinished, [&] {
    prepare();
    if (!first_thread()) return;
    hw::wait_stores_read<0>();
    hw::store_box(map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
  });
}

}  // namespace
}  // namespace tandem
