// Rules on stores that add to global memory (docs/simulator.md): a small kernel that breaks each, and the
// fault that names it, under every policy.
#include <cstring>

#include "tests/sim/store_faults.h"

namespace tandem {
namespace {

using ReductionFaults = StoreFaults;
INSTANTIATE_TEST_SUITE_P(Policies, ReductionFaults,
                         testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(ReductionFaults, AddThroughAMapOf16BitElements) {
  expect(Rule::bad_descriptor, [&] {
    prepare();
    if (first_thread()) hw::reduce_add_box(map_, {0, 0, 0, 0}, shared().a);
  });
}

TEST_P(ReductionFaults, NoneWhereBlocksAddToTheSameBox) {
  config_.blocks = 5;
  expect_none([&] {
    prepare();
    if (!first_thread()) return;
    add();
    hw::wait_stores_read<0>();
    add();
    hw::wait_stores_read<0>();
  });
  float term;
  const std::uint32_t words = 0x3f803f80;
  std::memcpy(&term, &words, sizeof term);
  float sum = 0;
  for (int i = 0; i < 10; ++i) sum += term;
  EXPECT_TRUE(std::all_of(sum_, sum_ + sums, [&](float x) { return x == sum; }));
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
      "added to by TMA");
}

TEST_P(ReductionFaults, BoxAddedToWhatAnotherBlockLoads) {
  config_.blocks = 2;
  expect(Rule::global_race, [&] {
    prepare();
    if (!first_thread()) return;
    if (turn() == 0) sink = hw::load_global(sum_ + 100);
    add();  // which the block that loads may
    hw::wait_stores<0>();
  });
}

TEST_P(ReductionFaults, BytesUsedThatACopyBroughtFromSums) {
  expect(
      Rule::global_race,
      [&] {
        init();
        prepare();
        if (!first_thread()) return;
        add();
        hw::wait_stores<0>();
        hw::barrier_arrive_expecting(shared().full, tile_bytes);
        hw::load_box(shared().a, sum_map_, shared().full, {0, 0, 0, 0});
        hw::barrier_wait(shared().full, 0);
        sink = shared().a[5][5];
      },
      "brought from sums");
}

}  // namespace
}  // namespace tandem
