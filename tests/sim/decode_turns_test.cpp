// Warpgroups that take streams in turns from one ring: each finds its own blocks of keys among the others'.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "decode/table.h"
#include "tests/sim/decode_runs.h"
#include "tests/sim/runs.h"

namespace tandem::test {
namespace {

using decode::DecodeVariant;
using hw::sim::Policy;

std::vector<DecodeVariant> variants_in_turns() {
  std::vector<DecodeVariant> variants = sim::decode_variants();
  std::erase_if(variants, [](const DecodeVariant& v) { return v.turns == 1; });
  return variants;
}

class DecodeInTurns : public testing::TestWithParam<DecodeVariant> {
 protected:
  /// The sequences on so many multiprocessors, under every policy.
  void expect_all_match(const DecodeCase& c, int multiprocessors) {
    for (const Policy policy : {Policy::eager, Policy::late, Policy::random}) {
      SCOPED_TRACE(testing::Message() << name_of(policy) << ": " << c);
      sim::Machine machine;
      machine.policy = policy;
      machine.multiprocessors = multiprocessors;
      expect_correct(run(GetParam(), c, workspace_, machine), DecodeTensors(c));
    }
  }
  DecodeCase step(std::vector<std::int32_t> lengths) const {
    DecodeCase c{.q_heads = 4, .kv_heads = 2, .head_dim = GetParam().head_dim};
    c.dtype = GetParam().operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
    c.lengths = std::move(lengths);
    c.capacity = *std::ranges::max_element(c.lengths) + 1;
    return c;
  }
  Workspace workspace_;
};

INSTANTIATE_TEST_SUITE_P(Variants, DecodeInTurns, testing::ValuesIn(variants_in_turns()),
                         test_name<DecodeVariant>);

TEST_P(DecodeInTurns, AStreamLongerThanTheRingKeepsTheNextOnesWaiting) {
  // Who looked at its stage before its turn would find an earlier round's keys, or the next but one's.
  const int block = GetParam().block_n, ring = GetParam().stages * block;
  expect_all_match(step({2 * ring + 5, 7, ring - 1, ring, ring + 1, 3 * ring, block}), 1);
}

TEST_P(DecodeInTurns, SequencesWithoutKeysPassTheirTurnOn) {
  expect_all_match(step({0, 0, 0, 0, 300, 0, 5, 0, 0}), 1);
  expect_all_match(step({0, 0}), 1);
}

TEST_P(DecodeInTurns, StreamsOfOneBlockComeThickAndFast) {
  DecodeCase c = step(std::vector<std::int32_t>(23, GetParam().block_n));
  c.new_len = 1, c.capacity = 2 * GetParam().block_n;
  expect_all_match(c, 2);
}

TEST_P(DecodeInTurns, PartsOfAStreamAreOfSeveralBlocksOfTheGrid) {
  const DecodeCase c = step(std::vector<std::int32_t>(5, 9 * GetParam().block_n - 3));
  expect_all_match(c, 4);
  expect_all_match(c, 8);  // shares of five quarters of a stream: two turns store parts side by side
}

TEST_P(DecodeInTurns, ALongStreamOvertakesTheValuesOfShortOnes) {
  const int block = GetParam().block_n;
  expect_all_match(step({block, block, 9 * block, 1, 1, 8 * block, 5, 3, 11 * block}), 1);
  // The first one's values have to straggle, of which two seeds in twenty-four make sure.
  DecodeCase c = step({block, block, 9 * block});
  c.q_heads = c.kv_heads = 1;
  sim::Machine machine;
  machine.policy = Policy::random, machine.multiprocessors = 1;
  for (machine.seed = 1; machine.seed <= 24; ++machine.seed) {
    SCOPED_TRACE(testing::Message() << "seed " << machine.seed);
    expect_correct(run(GetParam(), c, workspace_, machine), DecodeTensors(c));
  }
}

TEST_P(DecodeInTurns, ColumnsThatNoBoxReachesAreClearedForAllTurns) {
  DecodeCase c = step({500, 3, 200, 90, 129, 64});
  c.head_dim = GetParam().head_dim - 24;
  for (const int multiprocessors : {1, 3, 6}) expect_all_match(c, multiprocessors);
}

}  // namespace
}  // namespace tandem::test
