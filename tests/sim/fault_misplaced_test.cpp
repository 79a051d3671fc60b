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

}  // namespace
}  // namespace tandem
