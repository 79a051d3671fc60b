// Rules on stores that add to global memory (docs/simulator.md): a small kernel that breaks each, and the
// fault that names it, under every policy.
#include <cstring>

#include "tests/sim/store_faults.h"

namespace tandem {
namespace {

using ReductionFaults = StoreFaults;

/// Blocks whose adds have an order.
class ReductionInTurn : public StoreFaults {
 protected:
  void wait_for_turn(std::uint32_t turn) const {
    hw::wait_counter(&counter_, turn);
    hw::fence_async_proxy_global();
  }
  /// Adds when as many blocks as `turn` have.
  void add_at(std::uint32_t turn) {
    wait_for_turn(turn);
    add();
    hw::wait_stores<0>();
    hw::signal_counter(&counter_);
  }
  void copy_sums() {
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    hw::load_box(shared().a, sum_map_, shared().full, {0, 0, 0, 0});
    hw::barrier_wait(shared().full, 0);
    sink = shared().a[5][5];
  }
};

INSTANTIATE_TEST_SUITE_P(Policies, ReductionFaults,
                         testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

INSTANTIATE_TEST_SUITE_P(Policies, ReductionInTurn,
                         testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(ReductionFaults, AddThroughAMapOf16BitElements) {
  expect(Rule::bad_descriptor, [&] {
    prepare();
    if (first_thread()) hw::reduce_add_box(map_, {0, 0, 0, 0}, shared().a);
  });
}

TEST_P(ReductionFaults, BlocksThatAddToTheSameBoxInAnyOrder) {
  config_.blocks = 2;
  expect(
      Rule::global_race,
      [&] {
        prepare();
        if (!first_thread()) return;
        add();
        hw::wait_stores<0>();
      },
      "adds to sums");
}

TEST_P(ReductionInTurn, NoneWhereBlocksAddOneAfterAnother) {
  config_.blocks = 5;
  expect_none([&] {
    prepare();
    if (first_thread()) add_at(hw::block_index());
  });
  float term;
  const std::uint32_t words = 0x3f803f80;
  std::memcpy(&term, &words, sizeof term);
  float sum = 0;
  for (int i = 0; i < 5; ++i) sum += term;
  EXPECT_TRUE(std::all_of(sum_, sum_ + sums, [&](float x) { return x == sum; }));
  EXPECT_EQ(counter_, 5U);
}

TEST_P(ReductionInTurn, SignalBeforeTheAddIsInGlobalMemory) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    wait_for_turn(hw::block_index());
    add();
    hw::wait_stores_read<0>();
    hw::signal_counter(&counter_);
    hw::wait_stores<0>();
  });
}

TEST_P(ReductionInTurn, AddWithoutAFenceBehindTheWait) {
  config_.blocks = 2;
  expect(
      Rule::missing_proxy_fence,
      [&] {
        prepare();
        if (!first_thread()) return;
        hw::wait_counter(&counter_, hw::block_index());
        add();
        hw::wait_stores<0>();
        hw::signal_counter(&counter_);
      },
      "fence_async_proxy_global");
}

TEST_P(ReductionInTurn, CounterThatNobodyBringsThere) {
  config_.blocks = 2;
  expect(
      Rule::deadlock,
      [&] {
        prepare();
        if (first_thread()) add_at(hw::block_index() + 1);
      },
      "counter");
}

TEST_P(ReductionInTurn, NoneWhereACopyBringsSumsThatAreComplete) {
  config_.blocks = 3;
  expect_none([&] {
    init();
    prepare();
    if (!first_thread()) return;
    add_at(hw::block_index());
    if (hw::block_index() + 1 == hw::grid_size()) copy_sums();
  });
}

TEST_P(ReductionInTurn, BytesUsedThatACopyBroughtBeforeItsTurn) {
  config_.blocks = 2;
  expect(
      Rule::global_race,
      [&] {
        init();
        prepare();
        if (!first_thread()) return;
        if (turn() == 1) return copy_sums();
        add();
        hw::wait_stores<0>();
      },
      "brought from sums");
}

TEST_P(ReductionInTurn, SumsStoredOverThatACopyBroughtToSomebody) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    init();
    prepare();
    if (!first_thread()) return;
    if (turn() == 0) return copy_sums();
    hw::store_box(sum_map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
    hw::wait_stores<0>();
  });
}

TEST_P(ReductionFaults, BoxAddedToWhatAnotherBlockStores) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    if (turn() == 0) {
      hw::store_box(sum_map_, {0, 0, 0, 0}, shared().a);
      hw::commit_stores();
    } else {
      add();
    }
    hw::wait_stores<0>();
  });
}

TEST_P(ReductionFaults, BoxAddedToWhatNobodyWrote) {
  config_.buffers[1].uninitialised = true;
  expect(
      Rule::uninitialised_global,
      [&] {
        prepare();
        if (!first_thread()) return;
        add();
        hw::wait_stores<0>();
      },
      "adds to sums");
}

TEST_P(ReductionFaults, SumsLoadedWhileOthersAdd) {
  config_.blocks = 2;
  expect(
      Rule::global_race,
      [&] {
        prepare();
        if (!first_thread()) return;
        if (turn() == 0) {
          add();
          hw::wait_stores<0>();
        } else {
          sink = hw::load_global(sum_ + 100);
        }
      },
      "wrote by TMA");
}

TEST_P(ReductionFaults, BoxAddedToWhatAnotherBlockLoads) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    if (turn() == 0) {
      sink = hw::load_global(sum_ + 100);
    } else {
      add();
      hw::wait_stores<0>();
    }
  });
}

}  // namespace
}  // namespace tandem
