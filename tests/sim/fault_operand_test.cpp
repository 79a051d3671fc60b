// Rules on barriers' set-up and on verbs' operands (docs/simulator.md): a small kernel that breaks each, and
// the fault that names it, under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

class OperandFaults : public Faults {
 protected:
  /// The `index`th of so many barriers as fit, in memory that has another use otherwise.
  static hw::Barrier& barrier_in_tile(int index) {
    return reinterpret_cast<hw::Barrier*>(&shared().a[0][0])[index];
  }
  static void prepare() {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, OperandFaults,
                         testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

// ---- bad-barrier

TEST_P(OperandFaults, BarrierInitialisedTwice) {
  expect(
      Rule::bad_barrier,
      [] {
        init();
        if (first_thread()) hw::barrier_init(shared().full, 1);
      },
      "once more");
}

TEST_P(OperandFaults, BarrierThatIsNotAligned) {
  expect(
      Rule::bad_barrier,
      [] {
        auto* bytes = reinterpret_cast<unsigned char*>(&shared().full) + 4;
        if (first_thread()) hw::barrier_init(*reinterpret_cast<hw::Barrier*>(bytes), 1);
      },
      "aligned");
}

TEST_P(OperandFaults, BarrierForNoArrivalsOrTooMany) {
  for (const std::uint32_t arrivals : {0u, 1u << 20}) {
    expect(
        Rule::bad_barrier,
        [arrivals] {
          if (first_thread()) hw::barrier_init(shared().full, arrivals);
        },
        "for " + std::to_string(arrivals) + " arrivals");
  }
}

TEST_P(OperandFaults, MoreBarriersThanTheSimulatorHas) {
  expect(
      Rule::bad_barrier,
      [] {
        for (int i = 0; first_thread() && i < 129; ++i) hw::barrier_init(barrier_in_tile(i), 1);
      },
      "128");
}

TEST_P(OperandFaults, ParityThatIsNeither0Nor1) {
  expect(Rule::bad_argument, [] {
    init();
    hw::barrier_wait(shared().full, 2);
  });
}

TEST_P(OperandFaults, MoreBytesExpectedThanABarrierCounts) {
  expect(
      Rule::transaction_mismatch,
      [] {
        init();
        if (first_thread()) hw::barrier_arrive_expecting(shared().full, 1 << 20);
      },
      "1048575");
}

// ---- Named barriers

TEST_P(OperandFaults, NamedBarrierThatThereIsNot) {
  expect(Rule::bad_argument, [] { hw::sync_named(16, 128); });
}

TEST_P(OperandFaults, NamedBarrierForAWrongNumberOfThreads) {
  for (const std::uint32_t threads : {48u, 160u}) {
    expect(
        Rule::bad_argument, [threads] { hw::sync_named(1, threads); }, std::to_string(threads) + " threads");
  }
  expect(Rule::bad_argument, [] { hw::arrive_named(1, 0); });
}

TEST_P(OperandFaults, ThreadsThatExpectDifferentNumbersAtANamedBarrier) {
  expect(
      Rule::bad_argument, [] { hw::sync_named(1, hw::warp_index() == 3 ? 64 : 128); }, "others came for");
}

TEST_P(OperandFaults, ThreadsThatVoteAtANamedBarrierWhereOthersJustWait) {
  expect(
      Rule::bad_argument,
      [] {
        if (hw::warp_index() == 2) return hw::sync_named(1, 128);
        hw::sync_named_any(1, 128, false);
      },
      "predicate");
  expect(
      Rule::bad_argument,
      [] {
        if (hw::warp_index() == 2) return hw::arrive_named(1, 128);
        hw::sync_named_any(1, 128, false);
      },
      "predicate");
}

// ---- WGMMA

TEST_P(OperandFaults, DescriptorWithABaseOffset) {
  expect(Rule::bad_descriptor, [] {
    prepare();
    float d[32];
    hw::wgmma_fence();
    MatrixDescriptor a = descriptor(shared().a);
    a.bits |= std::uint64_t{1} << 49;
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, a, descriptor(shared().b), Accumulate::overwrite);
  });
}

TEST_P(OperandFaults, DescriptorThatIsMnMajorWithoutASwizzle) {
  expect(Rule::bad_descriptor, [] {
    prepare();
    float d[32];
    hw::wgmma_fence();
    const auto b = MatrixDescriptor::make(hw::shared_address(shared().b), 128, 1024, Swizzle::none);
    hw::wgmma_ss<Operand::bf16, 64, Major::mn>(d, descriptor(shared().a), b, Accumulate::overwrite);
  });
}

TEST_P(OperandFaults, AccumulatorsThatAreNoRegisters) {
  expect(Rule::bad_argument, [] {
    prepare();
    static float d[32];
    hw::wgmma_fence();
    multiply(d);
  });
}

TEST_P(OperandFaults, RegistersOfAnotherShapesAccumulators) {
  expect(
      Rule::use_before_wait,
      [] {
        prepare();
        float d[32];
        hw::wgmma_fence();
        multiply(d);
        hw::wgmma_ss<Operand::bf16, 32, Major::k>(reinterpret_cast<float(&)[16]>(d), descriptor(shared().a),
                                                  descriptor(shared().b), Accumulate::overwrite);
      },
      "another shape");
}

// ---- The rest

TEST_P(OperandFaults, PrefetchOfATensorMapThatWasNeverEncoded) {
  map_ = {};
  expect(Rule::bad_descriptor, [&] { hw::prefetch_map(map_); });
}

TEST_P(OperandFaults, CopyOfPackedRowsThroughAMapThatHasNone) {
  expect(
      Rule::bad_descriptor,
      [&] {
        init();
        if (first_thread()) hw::load_box(shared().a, map_, shared().full, hw::PackedOrigin{0, 0, 0, 64, 64});
      },
      "5 coordinates of a tensor map of 4 dimensions");
}

TEST_P(OperandFaults, ShuffleWithAMaskBeyondTheWarp) {
  expect(Rule::bad_argument, [] { sink = hw::shuffle_xor(1.f, 32); });
}

TEST_P(OperandFaults, SharedMemoryThatIsAlignedToMoreThanItCanBe) {
  struct alignas(2048) Far {
    int word;
  };
  expect(Rule::bad_argument, [] { hw::shared_memory<Far>().word = 1; });
}

TEST_P(OperandFaults, SharedMemoryThatTheBlockDoesNotHave) {
  config_.shared_bytes = sizeof(Shared) - 1024;
  expect(
      Rule::shared_bounds, [] { fill_tiles(); }, "the block's struct");
}

TEST_P(OperandFaults, ThreadsThatGoOnWithoutAnEnd) {
  config_.max_switches = 10'000;
  expect(
      Rule::deadlock,
      [] {
        for (;;) hw::sync_warp();
      },
      "without an end");
}

}  // namespace
}  // namespace tandem
