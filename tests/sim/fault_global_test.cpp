// Rules on global memory between blocks (docs/simulator.md): a small kernel that breaks each, and the fault
// that names it, under every policy.
#include <numeric>

#include "tests/sim/faults.h"

namespace tandem {
namespace {

/// Blocks that share an output, a partial result each, and counters.
class GlobalFaults : public Faults {
 protected:
  static constexpr std::uint32_t threads = 128, blocks = 4;

  GlobalFaults() : partial_(blocks * threads, -1), output_(threads, -1), counters_(3) {
    config_.blocks = blocks;
    config_.buffers = {Buffer{partial_.data(), partial_.size() * sizeof(float), "partial", true},
                       Buffer{output_.data(), output_.size() * sizeof(float), "output", true},
                       Buffer{counters_.data(), counters_.size() * sizeof(std::uint32_t), "counters", true}};
  }

  float* own_partial() { return &partial_[hw::block_index() * threads + hw::thread_index()]; }
  void store_partial() { hw::store_global(own_partial(), static_cast<float>(hw::block_index() + 1)); }
  /// Thread 0 counts its block in; all threads hear whether it is the last.
  bool count(bool wait_before = true, bool wait_after = true) {
    if (wait_before) hw::sync_block();
    if (first_thread()) arrived_ = hw::atomic_add(&counters_[0], 1);
    if (wait_after) hw::sync_block();
    return arrived_ == blocks - 1;
  }
  void combine() {
    float sum = 0;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      sum += hw::load_global(&partial_[i * threads + hw::thread_index()]);
    }
    hw::store_global(&output_[hw::thread_index()], sum);
  }
  /// The how-many-th block to run the calling thread's is: what no kernel knows.
  int turn() {
    int& turn = turns_[hw::block_index()];
    if (turn < 0) turn = next_turn_++;
    return turn;
  }

  std::vector<float> partial_, output_;
  std::vector<std::uint32_t> counters_;
  std::uint32_t arrived_ = 0;  // host memory in place of shared memory, which is not what is tested
  std::vector<int> turns_ = std::vector<int>(blocks, -1);
  int next_turn_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Policies, GlobalFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(GlobalFaults, NoneWhereTheLastBlockCombines) {
  expect_none([&] {
    store_partial();
    if (!count()) return;
    combine();
    if (first_thread()) hw::store_global(&counters_[0], 0u);
  });
  EXPECT_EQ(output_, std::vector<float>(threads, 1 + 2 + 3 + 4));
  EXPECT_EQ(counters_[0], 0u);
}

TEST_P(GlobalFaults, StoreBeforeTheGridBeforeHasEnded) {
  config_.early = true;
  expect(
      Rule::early_access, [&] { store_partial(); }, "partial");
  expect_none([&] {
    hw::wait_for_prior_grid();
    store_partial();
  });
}

TEST_P(GlobalFaults, AnotherThreadsWaitForTheGridBeforeIsNoneWithoutABarrier) {
  config_.early = true;
  const auto kernel = [&](bool barrier) {
    if (first_thread()) hw::wait_for_prior_grid();
    if (barrier) hw::sync_block();
    store_partial();
  };
  expect(
      Rule::early_access, [&] { kernel(false); }, "partial");
  expect_none([&] { kernel(true); });
}

TEST_P(GlobalFaults, GridBesideTheOneBeforeThatNeverWaitsForIt) {
  config_.beside = true;
  expect(
      Rule::unfinished, [&] { store_partial(); }, "ran beside");
  expect_none([&] {
    store_partial();
    if (first_thread()) hw::wait_for_prior_grid();
  });
}

TEST_P(GlobalFaults, GridThatLetsTheOneBesideItBeginTooEarly) {
  config_.next_beside = true;
  expect(
      Rule::early_access, [&] { hw::release_next_grid(); }, "runs beside this one");
  expect_none([&] {
    hw::wait_for_prior_grid();
    hw::release_next_grid();
  });
}

TEST_P(GlobalFaults, LoadOfWhatAnotherBlockStored) {
  expect(
      Rule::global_race,
      [&] {
        store_partial();
        sink = hw::load_global(&partial_[(hw::block_index() ^ 1) * threads + hw::thread_index()]);
      },
      "partial");
}

TEST_P(GlobalFaults, StoreOverWhatAnotherBlockLoaded) {
  expect(Rule::global_race, [&] {
    if (turn() == 0) {
      sink = hw::load_global(&partial_[5]);
    } else if (first_thread()) {
      hw::store_global(&partial_[5], 1.f);
    }
  });
}

TEST_P(GlobalFaults, BlockCountedBeforeItsThreadsHaveStored) {
  expect(Rule::global_race, [&] {
    store_partial();
    if (count(false)) combine();
  });
}

TEST_P(GlobalFaults, LoadsThatDoNotWaitForTheThreadThatCounts) {
  expect(Rule::global_race, [&] {
    store_partial();
    hw::sync_block();
    if (first_thread()) arrived_ = hw::atomic_add(&counters_[0], 1);
    if (turn() == blocks - 1) combine();
  });
}

TEST_P(GlobalFaults, AtomicsAtDifferentPlaces) {
  expect(Rule::global_race, [&] {
    store_partial();
    hw::sync_block();
    if (first_thread()) hw::atomic_add(&counters_[turn() == 3 ? 1 : 0], 1);
    hw::sync_block();
    if (turn() == 3) combine();
  });
}

TEST_P(GlobalFaults, NoneWhereAThirdBlockTellsWhatItHeard) {
  config_.blocks = 3;
  expect_none([&] {
    const int turn = this->turn();
    if (turn == 0) store_partial();
    hw::sync_block();
    if (first_thread()) {
      if (turn <= 1) hw::atomic_add(&counters_[0], 1);
      if (turn >= 1) hw::atomic_add(&counters_[1], 1);
    }
    hw::sync_block();
    if (turn == 2) {
      const auto first = std::find(turns_.begin(), turns_.end(), 0) - turns_.begin();
      sink = hw::load_global(&partial_[first * threads + hw::thread_index()]);
    }
  });
}

TEST_P(GlobalFaults, CounterThatIsLoadedPlainly) {
  expect(
      Rule::global_race,
      [&] {
        if (first_thread()) hw::atomic_add(&counters_[0], 1);
        if (hw::thread_index() == 64) sink = static_cast<float>(hw::load_global(&counters_[0]));
      },
      "counters");
}

TEST_P(GlobalFaults, CounterThatIsResetWhileOthersCount) {
  expect(Rule::global_race, [&] {
    if (!first_thread()) return;
    if (turn() == 1) {
      hw::store_global(&counters_[2], 0u);
    } else {
      hw::atomic_add(&counters_[2], 1);
    }
  });
}

TEST_P(GlobalFaults, LoadOutsideOfTheBuffers) {
  expect(Rule::global_bounds, [&] { sink = hw::load_global(output_.data() + threads); });
}

TEST_P(GlobalFaults, MisalignedLoad) {
  expect(Rule::global_bounds, [&] {
    std::uint32_t words[4];
    hw::load_global(words, output_.data() + 1);
    sink = static_cast<float>(words[0]);
  });
}

TEST_P(GlobalFaults, AtomicOnWhatIsOnlyRead) {
  config_.buffers[2].writable = false;
  expect(Rule::global_bounds, [&] { hw::atomic_add(&counters_[0], 1); });
}

TEST_P(GlobalFaults, LoadOfWhatNobodyWrote) {
  config_.buffers[0].uninitialised = true;
  const auto kernel = [&](std::uint32_t stored) {
    if (hw::thread_index() < stored) store_partial();
    if (count()) combine();
  };
  expect(
      Rule::uninitialised_global, [&] { kernel(threads - 1); }, "reads partial at byte 508, which nobody");
  counters_[0] = 0;
  expect_none([&] { kernel(threads); });
}

TEST_P(GlobalFaults, LoadBeforeTheStoreThatItIsFor) {
  config_.buffers[0].uninitialised = true;
  expect(Rule::uninitialised_global, [&] {
    sink = hw::load_global(own_partial());
    store_partial();
  });
}

TEST_P(GlobalFaults, AtomicOnWhatNobodyWrote) {
  config_.buffers[2].uninitialised = true;
  expect(
      Rule::uninitialised_global, [&] { hw::atomic_add(&counters_[0], 1); }, "adds to counters");
}

TEST_P(GlobalFaults, CounterThatIsNotAligned) {
  expect(
      Rule::global_bounds,
      [&] { hw::take_number(reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(&counters_[0]) + 2)); },
      "aligned");
}

TEST_P(GlobalFaults, CounterOutsideOfTheBuffers) {
  std::uint32_t other = 0;
  expect(Rule::global_bounds, [&] { hw::signal_counter(&other); });
  config_.buffers[2].writable = false;
  expect(Rule::global_bounds, [&] { hw::wait_counter(&counters_[0], 0); });
}

TEST_P(GlobalFaults, CounterThatNobodyWrote) {
  config_.buffers[2].uninitialised = true;
  expect(
      Rule::uninitialised_global, [&] { hw::take_number(&counters_[1]); }, "counter of counters at byte 4");
}

/// One block copies the tensor, of which it may store row 5.
class CopyFaults : public Faults {
 protected:
  CopyFaults() { config_.buffers = {Buffer{tensor_, tile_bytes, "cache", true}}; }

  void load_all() {
    init();
    if (first_thread()) load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
    hw::sync_block();
  }
  static bool stores() { return hw::thread_index() < 64; }
  std::uint16_t* own() { return const_cast<std::uint16_t*>(tensor_) + 5 * 64 + hw::thread_index(); }
  void store() {
    if (stores()) hw::store_global(own(), std::uint16_t{7});
  }
  static void multiply_tile() {
    float d[32];
    hw::wgmma_fence();
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(shared().a), descriptor(shared().a),
                                              Accumulate::overwrite);
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, CopyFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(CopyFaults, NoneWhereCopiedBytesOfStoredRowsAreOverwrittenBeforeTheirUse) {
  expect_none([&] {
    load_all();
    store();
    if (stores()) shared().a[5][hw::thread_index()] = 7;
    hw::fence_async_proxy();
    hw::sync_block();
    sink = shared().a[5][hw::thread_index() % 64];
    multiply_tile();
  });
}

TEST_P(CopyFaults, BytesUsedThatACopyBroughtFromWhereTheKernelStored) {
  expect(
      Rule::global_race,
      [&] {
        store();
        hw::sync_block();
        load_all();
        if (stores()) sink = shared().a[5][hw::thread_index()];
      },
      "brought from cache at byte");
}

TEST_P(CopyFaults, ProductOfBytesThatACopyBroughtFromWhereTheKernelStored) {
  expect(Rule::global_race, [&] {
    store();
    hw::sync_block();  // without a proxy fence
    load_all();
    multiply_tile();
  });
}

TEST_P(CopyFaults, NoneWhereAStoreComesBehindUsesOfACopy) {
  expect_none([&] {
    load_all();
    multiply_tile();
    hw::sync_block();
    store();
  });
}

TEST_P(CopyFaults, BytesUsedThatACopyBroughtFromWhatNobodyWrote) {
  config_.buffers[0].uninitialised = true;
  expect(
      Rule::uninitialised_global,
      [&] {
        load_all();
        multiply_tile();
      },
      "brought from cache");
}

TEST_P(CopyFaults, BulkCopyThatIsNoMultipleOf16Bytes) {
  expect(Rule::bad_argument, [&] {
    init();
    if (first_thread()) hw::copy_in(shared().a, tensor_, 24, shared().full);
  });
}

TEST_P(CopyFaults, BulkCopyToAMisalignedPlace) {
  expect(Rule::bad_argument, [&] {
    init();
    if (first_thread()) hw::copy_in(&shared().a[0][4], tensor_, 32, shared().full);
  });
}

TEST_P(CopyFaults, CopyBeforeTheGridBeforeHasEnded) {
  config_.early = true;
  const auto kernel = [&](bool wait) {
    init();
    if (!first_thread()) return;
    if (wait) hw::wait_for_prior_grid();
    load_expected(shared().a);
    hw::barrier_wait(shared().full, 0);
  };
  expect(
      Rule::early_access, [&] { kernel(false); }, "for a copy");
  expect_none([&] { kernel(true); });
}

TEST_P(CopyFaults, BulkCopyFromOutsideOfTheBuffers) {
  expect(Rule::global_bounds, [&] {
    init();
    if (!first_thread()) return;
    hw::barrier_arrive_expecting(shared().full, 64);
    hw::copy_in(shared().a, tensor_ + tile_bytes / 2 - 16, 64, shared().full);
    hw::barrier_wait(shared().full, 0);
  });
}

TEST_P(CopyFaults, BytesOfABulkCopyReadBeforeTheirBarrier) {
  expect(Rule::use_before_wait, [&] {
    init();
    if (first_thread()) {
      hw::barrier_arrive_expecting(shared().full, 64);
      hw::copy_in(shared().a, tensor_, 64, shared().full);
      sink = shared().a[0][31];
    }
  });
}

}  // namespace
}  // namespace tandem
