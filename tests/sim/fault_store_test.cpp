// Rules on asynchronous stores from shared memory (docs/simulator.md): a small kernel that breaks each, and
// the fault that names it, under every policy.
#include "tests/sim/store_faults.h"

namespace tandem {
namespace {

INSTANTIATE_TEST_SUITE_P(Policies, StoreFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(StoreFaults, NoneWhereTheTileIsWrittenAnewAfterTheWait) {
  std::fill(memory_.begin(), memory_.end(), std::uint16_t{0});
  expect_none([&] {
    prepare();
    if (first_thread()) {
      store();
      hw::wait_stores_read<0>();
    }
    hw::sync_block();
    for (std::uint32_t i = hw::thread_index(); i < 64 * 64; i += 128) shared().a[i / 64][i % 64] = 7;
    hw::fence_async_proxy();
    hw::sync_block();
    if (first_thread()) {
      store(64);
      hw::wait_stores<0>();
      EXPECT_EQ(hw::load_global(output()), 0x3f803f80u);
      EXPECT_EQ(hw::load_global(output() + 64 * 32), 0x00070007u);
    }
  });
  EXPECT_TRUE(std::all_of(tensor_, tensor_ + 64 * 64, [](std::uint16_t x) { return x == 0x3f80; }));
  EXPECT_TRUE(std::all_of(tensor_ + 64 * 64, tensor_ + 128 * 64, [](std::uint16_t x) { return x == 7; }));
}

TEST_P(StoreFaults, NoneOfStoresThatAreSeenBeforeOrAfterTheWait) {
  std::fill(memory_.begin(), memory_.end(), std::uint16_t{0});
  std::uint16_t seen_before = 0, seen_read = 0, seen_after = 0;
  config_.buffers.clear();  // the kernel looks where it has no business to
  expect_none([&] {
    prepare();
    if (!first_thread()) return;
    store();
    seen_before = *tensor_;
    hw::wait_stores_read<0>();
    overwrite();
    shared().a[0][0] = 1;
    seen_read = *tensor_;
    hw::wait_stores<0>();
    seen_after = *tensor_;
  });
  if (GetParam() != Policy::random) {
    const std::uint16_t early = GetParam() == Policy::eager ? 0x3f80 : 0;
    EXPECT_EQ(seen_before, early);
    EXPECT_EQ(seen_read, early);
  }
  EXPECT_EQ(seen_after, 0x3f80);
}

TEST_P(StoreFaults, OrdinaryStoresNotFencedForAStore) {
  expect(
      Rule::missing_proxy_fence,
      [&] {
        fill_tiles();
        hw::sync_block();
        if (!first_thread()) return;
        store();
        hw::wait_stores_read<0>();
      },
      "starts a store");
}

TEST_P(StoreFaults, StoredMatricesNotFencedForAStore) {
  expect(Rule::missing_proxy_fence, [&] {
    prepare();
    if (hw::warp_index() == 1) hw::store_matrices<1>(&shared().a[hw::lane_index() % 8][0], {0u});
    hw::sync_block();
    if (!first_thread()) return;
    store();
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, StoreOfATileThatOthersStillWrite) {
  expect_one_of({Rule::shared_race, Rule::operand_overwritten}, [&] {
    prepare();
    fill_tiles();
    hw::fence_async_proxy();  // a block barrier belongs behind it
    if (!first_thread()) return;
    store();
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, SourceOverwrittenBeforeTheWait) {
  expect(
      Rule::operand_overwritten,
      [&] {
        prepare();
        if (!first_thread()) return;
        store();
        overwrite();
        hw::wait_stores_read<0>();
      },
      "its thread has not waited for it\n    at tests/sim/store_faults.h:");
}

TEST_P(StoreFaults, SourceOverwrittenByAThreadThatDidNotHearOfTheWait) {
  expect(
      Rule::operand_overwritten,
      [&] {
        prepare();
        if (first_thread()) store();
        hw::sync_block();
        if (first_thread()) hw::wait_stores_read<0>();
        if (hw::thread_index() == 64) overwrite();
      },
      "the store\n");
}

TEST_P(StoreFaults, SourceOverwrittenByACopy) {
  expect(Rule::operand_overwritten, [&] {
    init();
    prepare();
    if (!first_thread()) return;
    store();
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, AWaitThatLeavesTheStorePendingIsNoWait) {
  expect(Rule::operand_overwritten, [&] {
    prepare();
    if (!first_thread()) return;
    store();
    hw::wait_stores_read<1>();
    overwrite();
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, SourceOverwrittenThatAnotherThreadsStoreStillReads) {
  expect(Rule::operand_overwritten, [&] {
    prepare();
    if (hw::thread_index() == 64) store(64);
    hw::sync_block();
    if (first_thread()) {
      store();
      hw::wait_stores_read<0>();
      overwrite();
    }
    hw::sync_block();
    if (hw::thread_index() == 64) hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, AStoreThatIsNotCommittedIsNotWaitedFor) {
  expect(Rule::operand_overwritten, [&] {
    prepare();
    if (!first_thread()) return;
    start_store();
    hw::wait_stores_read<0>();
    overwrite();
  });
}

TEST_P(StoreFaults, StoreOfWhatNobodyWrote) {
  expect(Rule::uninitialised_shared, [&] {
    if (!first_thread()) return;
    store();
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, StoreOfBytesThatHaveNotLanded) {
  expect(Rule::use_before_wait, [&] {
    init();
    if (!first_thread()) return;
    load_expected(shared().a);
    store(64);
    hw::barrier_wait(shared().full, 0);
    hw::wait_stores_read<0>();
  });
}

TEST_P(StoreFaults, StoreFromBeyondSharedMemory) {
  expect(Rule::shared_bounds, [&] {
    prepare();
    if (first_thread()) hw::store_box(map_, {0, 0, 0, 0}, shared().b[32]);
  });
}

TEST_P(StoreFaults, StoreFromAMisalignedPlace) {
  expect(Rule::bad_argument, [&] {
    prepare();
    if (first_thread()) hw::store_box(map_, {0, 0, 0, 0}, &shared().a[0][32]);
  });
}

TEST_P(StoreFaults, StoreToAColumnBetweenStepsOf16Bytes) {
  expect(Rule::bad_argument, [&] {
    prepare();
    if (first_thread()) hw::store_box(map_, {1, 0, 0, 0}, shared().a);
  });
}

TEST_P(StoreFaults, StoreOfABoxThatBeginsBeforeTheTensor) {
  expect(Rule::bad_argument, [&] {
    prepare();
    if (first_thread()) hw::store_box(map_, {0, -1, 0, 0}, shared().a);
  });
}

TEST_P(StoreFaults, StoreThroughAMapThatWasNeverEncoded) {
  map_ = {};
  expect(Rule::bad_descriptor, [&] {
    prepare();
    if (first_thread()) store();
  });
}

TEST_P(StoreFaults, StoreToPackedRowsThroughAMapThatHasNone) {
  expect(
      Rule::bad_descriptor,
      [&] {
        prepare();
        if (first_thread()) hw::store_box(map_, hw::PackedOrigin{0, 0, 0, 64, 64}, shared().a);
      },
      "5 coordinates of a tensor map of 4 dimensions");
}

TEST_P(StoreFaults, BoxStoredOutsideOfTheBuffers) {
  config_.buffers[0].bytes = tile_bytes + 64;
  expect(Rule::global_bounds, [&] {
    prepare();
    if (first_thread()) store(32);
  });
}

TEST_P(StoreFaults, BoxStoredBeforeTheGridBeforeHasEnded) {
  config_.early = true;
  expect(Rule::early_access, [&] {
    prepare();
    if (first_thread()) store();
  });
}

TEST_P(StoreFaults, BoxStoredToWhatIsOnlyRead) {
  config_.buffers[0].writable = false;
  expect(Rule::global_bounds, [&] {
    prepare();
    if (first_thread()) store();
  });
}

TEST_P(StoreFaults, StoreThatNobodyWaitsFor) {
  expect(
      Rule::unfinished,
      [&] {
        prepare();
        if (first_thread()) store();
      },
      "the store\n");
}

TEST_P(StoreFaults, StoreThatNobodyCommits) {
  expect(Rule::unfinished, [&] {
    prepare();
    if (!first_thread()) return;
    start_store();
    hw::wait_stores<0>();
  });
}

TEST_P(StoreFaults, TwoBlocksThatStoreABoxToTheSamePlace) {
  config_.blocks = 2;
  expect(
      Rule::global_race,
      [&] {
        prepare();
        if (!first_thread()) return;
        store(static_cast<int>(hw::block_index()) * 63);  // the last row of one, the first of the other
        hw::wait_stores<0>();
      },
      "output at byte 8064");
}

TEST_P(StoreFaults, TwoStoresOfAThreadToTheSamePlace) {
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    store();
    store();
    hw::wait_stores<0>();
  });
}

TEST_P(StoreFaults, BoxLoadedThatOnlyHasLeftSharedMemory) {
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    store();
    hw::wait_stores_read<0>();
    sink = static_cast<float>(hw::load_global(output()));
    hw::wait_stores<0>();
  });
}

TEST_P(StoreFaults, NoneWhereTheLastBlockLoadsWhatAllHaveStored) {
  config_.blocks = 2;
  expect_none([&] {
    prepare();
    if (!first_thread()) return;
    store(static_cast<int>(hw::block_index()) * 64);
    hw::wait_stores<0>();
    if (hw::atomic_add(&counter_, 1) == 0) return;
    EXPECT_EQ(hw::load_global(output()) + hw::load_global(output() + 64 * 32), 2 * 0x3f803f80u);
  });
}

TEST_P(StoreFaults, BlockCountedBeforeItsStoreIsWaitedFor) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    store(static_cast<int>(hw::block_index()) * 64);
    hw::wait_stores_read<0>();
    const bool last = hw::atomic_add(&counter_, 1) == 1;
    hw::wait_stores<0>();
    if (last) sink = static_cast<float>(hw::load_global(output()) + hw::load_global(output() + 64 * 32));
  });
}

TEST_P(StoreFaults, BytesUsedThatACopyBroughtFromWhereABoxWasStored) {
  expect(
      Rule::global_race,
      [&] {
        init();
        prepare();
        if (!first_thread()) return;
        store();
        hw::wait_stores_read<0>();  // and not that it is in global memory
        load_expected(shared().a);
        hw::barrier_wait(shared().full, 0);
        sink = shared().a[5][5];
        hw::wait_stores<0>();
      },
      "brought from output");
}

TEST_P(StoreFaults, NoneWhereACopyBringsWhatItsThreadHasStored) {
  expect_none([&] {
    init();
    prepare();
    if (!first_thread()) return;
    store();
    hw::wait_stores<0>();
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
    store(64);
    hw::wait_stores<0>();
  });
}

}  // namespace
}  // namespace tandem
