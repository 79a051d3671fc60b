// Rules on the matrices of a warp (docs/simulator.md): a small kernel that breaks each, and the fault that
// names it, under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

class MatrixFaults : public Faults {
 protected:
  /// The lane's row of the warp's 32 rows of tile a.
  static std::uint16_t* row(std::uint32_t warp = hw::warp_index()) {
    return shared().a[16 * warp % 64 + hw::lane_index() % 16] + hw::lane_index() / 16 * 8;
  }
  static void store_rows() {
    const std::uint32_t ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    hw::store_matrices(row(), ones);
  }
  static void load_rows(std::uint32_t warp = hw::warp_index()) {
    std::uint32_t m[4];
    hw::load_matrices(m, row(warp));
    sink = static_cast<float>(m[0] + m[1] + m[2] + m[3]);
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, MatrixFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(MatrixFaults, NoneInACorrectKernel) {
  expect_none([] {
    store_rows();
    hw::sync_warp();
    load_rows();
    hw::sync_block();
    load_rows(hw::warp_index() ^ 1);
  });
}

TEST_P(MatrixFaults, MatricesThatNobodyWrote) {
  expect(Rule::uninitialised_shared, [] { load_rows(); });
}

TEST_P(MatrixFaults, MatricesLoadedBeforeTheirBarrier) {
  expect(Rule::use_before_wait, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
    hw::sync_block();
    load_rows();
  });
}

TEST_P(MatrixFaults, NoneWhereLanesThatAWaitHasPartedLoadMatrices) {
  // ldmatrix.sync waits for the warp's other lanes by itself; .aligned only asks that all come there.
  expect_none([&] {
    init();
    if (hw::warp_index() == 3 && hw::elect_one()) load_expected(shared().a);
    if (hw::warp_index() != 0) return;
    hw::barrier_wait(shared().full, 0);
    std::uint32_t matrices[4];
    hw::load_matrices(matrices, &shared().a[hw::lane_index()][0]);
    sink = static_cast<float>(matrices[0]);
  });
}

TEST_P(MatrixFaults, MatricesLoadedByEachPartOfAWarpBehindItsOwnWait) {
  expect(
      Rule::divergence,
      [&] {
        init();
        if (hw::warp_index() == 3 && hw::elect_one()) load_expected(shared().a);
        if (hw::warp_index() != 0) return;
        std::uint32_t matrices[4];
        if (hw::lane_index() % 2 == 0) {
          hw::barrier_wait(shared().full, 0);
          hw::load_matrices(matrices, &shared().a[hw::lane_index()][0]);
        } else {
          hw::barrier_wait(shared().full, 0);
          hw::load_matrices(matrices, &shared().a[hw::lane_index()][0]);
          sink = 2;
        }
        sink = static_cast<float>(matrices[0]);
      },
      "at another place");
}

TEST_P(MatrixFaults, MatricesLoadedThatOtherLanesJustStored) {
  expect(Rule::shared_race, [] {
    store_rows();
    std::uint32_t m[4];
    hw::load_matrices_transposed(m, row());
    sink = static_cast<float>(m[0] + m[1] + m[2] + m[3]);
  });
}

TEST_P(MatrixFaults, MatricesStoredOverWhatOthersMayStillRead) {
  expect(Rule::shared_race, [] {
    store_rows();
    hw::sync_block();
    load_rows(hw::warp_index() ^ 1);
    store_rows();
  });
}

TEST_P(MatrixFaults, SlotOfMatricesReleasedByALaneThatDidNotHearOfTheOthers) {
  config_.threads = 64;
  expect_one_of({Rule::shared_race, Rule::use_before_wait}, [&] {
    init();
    if (first_thread()) load_expected(shared().a);
    if (hw::warp_index() == 1) {
      hw::barrier_wait(shared().full, 0);
      load_rows();
      if (hw::lane_index() == 0) hw::barrier_arrive(shared().empty);  // a sync_warp belongs before it
    } else if (first_thread()) {
      hw::barrier_wait(shared().empty, 0);
      load_expected(shared().a);
      hw::barrier_wait(shared().full, 1);
    }
  });
}

TEST_P(MatrixFaults, StoredMatricesNotFencedForAProduct) {
  expect(Rule::missing_proxy_fence, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    store_rows();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::wgmma_wait<0>();
  });
}

TEST_P(MatrixFaults, MatricesStoredOverAProductsOperand) {
  expect(Rule::operand_overwritten, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    hw::wgmma_fence();
    multiply(d);
    hw::sync_block();
    store_rows();
    hw::wgmma_wait<0>();
  });
}

TEST_P(MatrixFaults, MatricesLoadedIntoAFragmentThatAProductReads) {
  expect(Rule::operand_overwritten, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32];
    std::uint32_t a[4] = {1, 2, 3, 4};
    hw::wgmma_fence();
    hw::wgmma_rs<Operand::bf16, 64, Major::k>(d, a, descriptor(shared().b), Accumulate::overwrite);
    hw::wgmma_commit();
    hw::load_matrices(a, row());
    hw::wgmma_wait<0>();
    sink = d[0] + static_cast<float>(a[0]);
  });
}

TEST_P(MatrixFaults, MatrixProductWithAFactorThatAProductHasNotFinished) {
  expect(Rule::use_before_wait, [] {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
    float d[32], sum[4] = {};
    hw::wgmma_fence();
    multiply(d);
    const std::uint32_t p = hw::pack<Operand::bf16>(d[0], d[1]);
    hw::mma_sync<Operand::bf16>(sum, {p, p, p, p}, {p, p});
    hw::wgmma_wait<0>();
    sink = sum[0];
  });
}

TEST_P(MatrixFaults, LanesThatMoveDifferentNumbersOfMatrices) {
  expect(Rule::divergence, [] {
    fill_tiles();
    hw::sync_block();
    if (hw::lane_index() % 2 == 0) {
      std::uint32_t m[2];
      hw::load_matrices(m, shared().a[hw::lane_index()]);
    } else {
      load_rows(0);
    }
  });
}

TEST_P(MatrixFaults, MatrixProductThatSomeLanesMiss) {
  expect(Rule::inactive_lane, [] {
    float d[4] = {};
    if (hw::lane_index() < 16) hw::mma_sync<Operand::fp16>(d, {0, 0, 0, 0}, {0, 0});
    sink = d[0];
  });
}

TEST_P(MatrixFaults, MatrixRowThatIsNotAligned) {
  expect(Rule::bad_argument, [] {
    fill_tiles();
    hw::sync_block();
    std::uint32_t m[1];
    hw::load_matrices(m, &shared().a[hw::lane_index()][4]);
  });
}

TEST_P(MatrixFaults, MatrixRowBeyondSharedMemory) {
  expect(Rule::shared_bounds, [] {
    const std::uint32_t m[1] = {0};
    hw::store_matrices_transposed(reinterpret_cast<std::uint16_t*>(&shared() + 1) + 8 * hw::lane_index(), m);
  });
}

TEST_P(MatrixFaults, BarrierStoredOverByMatrices) {
  expect(Rule::bad_barrier, [] {
    init();
    const std::uint32_t m[1] = {0};
    const auto address = reinterpret_cast<std::uintptr_t>(&shared().full) / 16 * 16;
    hw::store_matrices(reinterpret_cast<void*>(address), m);
  });
}

TEST_P(MatrixFaults, ShuffleFromALaneThatThereIsNot) {
  expect(Rule::bad_argument, [] { sink = hw::shuffle(1.f, 32); });
}

}  // namespace
}  // namespace tandem
