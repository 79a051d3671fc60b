// Indices that lie outside of their array (docs/simulator.md): a small kernel for each, under every policy.
#include "tests/sim/faults.h"

namespace tandem {
namespace {

class ArrayFaults : public Faults {
 protected:
  /// `i`, which the compiler does not know.
  static int unknown(int i) {
    volatile int value = i;
    return value;
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, ArrayFaults, testing::Values(Policy::eager, Policy::late, Policy::random),
                         [](const auto& info) { return hw::sim::name_of(info.param); });

TEST_P(ArrayFaults, IndexPastAThreadsAccumulators) {
  expect(
      Rule::array_bounds,
      [] {
        float accumulators[2][4] = {};
        accumulators[unknown(1)][unknown(4)] = 1;
        sink = accumulators[1][0];
      },
      "index 4 of an array of type 'float [4]'");
}

TEST_P(ArrayFaults, IndexPastTheRowsOfAThreadsAccumulators) {
  expect(
      Rule::array_bounds,
      [] {
        float accumulators[2][4] = {};
        sink = accumulators[unknown(2)][unknown(0)];
      },
      "index 2 of an array of type 'float [2][4]'");
}

TEST_P(ArrayFaults, IndexBeforeAFragment) {
  expect(
      Rule::array_bounds,
      [] {
        std::uint32_t fragment[4] = {};
        sink = static_cast<float>(fragment[unknown(-1)]);
      },
      "index -1 of");
}

TEST_P(ArrayFaults, LoopThatGoesOneTooFar) {
  struct State {
    float sum = 0;
    float row_scale[2] = {};  // the last member, which may not be taken for one without an end
  };
  expect(Rule::array_bounds, [] {
    State state;
    for (int i = 0; i <= unknown(2); ++i) state.row_scale[i] = 1;
    sink = state.row_scale[0] + state.sum;
  });
}

TEST_P(ArrayFaults, StageThatThereIsNot) {
  struct Stages {
    float of_k[2], of_v[2];
  };
  expect(Rule::array_bounds, [] { hw::shared_memory<Stages>().of_k[unknown(2)] = 1; });
}

TEST_P(ArrayFaults, IndexOfAnUnsignedTypeThatWentBelowZero) {
  expect(
      Rule::array_bounds,
      [] {
        float sums[4] = {};
        const auto before = static_cast<std::uint32_t>(unknown(0)) - 1;
        sink = sums[before];
      },
      "index 4294967295 of");
}

TEST_P(ArrayFaults, NoneForTheEndOfAnArray) {
  expect_none([] {
    float sums[4] = {1, 2, 3, 4};
    float sum = 0;
    for (const float* at = sums; at != &sums[unknown(4)]; ++at) sum += *at;
    sink = sum;
  });
}

}  // namespace
}  // namespace tandem
