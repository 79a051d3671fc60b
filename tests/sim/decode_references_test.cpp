// Scores that grow from block to block, so that references have to be raised behind a stream's first block;
// and caches that end within a block of keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <numbers>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "decode/table.h"
#include "tests/sim/decode_draws.h"
#include "tests/sim/decode_runs.h"
#include "tests/sim/runs.h"

namespace tandem::test {
namespace {

using decode::DecodeVariant;
using hw::sim::Policy;

/// Of bf16, without 8-bit kernels that differ in elements alone.
std::vector<DecodeVariant> variants() {
  std::vector<DecodeVariant> all = sim::decode_variants();
  std::erase_if(all, [](const DecodeVariant& v) {
    return v.operand != hw::Operand::bf16 || v.lists_queries() ||
           (v.eight_bit() && v.element != decode::Element::e4m3);
  });
  return all;
}

class DecodeReferences : public testing::TestWithParam<DecodeVariant> {
 protected:
  /// A step of the variant's, of one key/value head and sequences of these lengths.
  DecodeCase step(std::vector<std::int32_t> lengths, std::int64_t q_heads) const {
    const DecodeVariant& variant = GetParam();
    DecodeCase c = draw_case(variant, seed_of(sim::name_of(variant), 3));
    c.lengths = std::move(lengths), c.q_len = 1, c.kv_heads = 1, c.q_heads = q_heads;
    c.capacity = *std::ranges::max_element(c.lengths), c.page_size = 0;
    c.new_len = 0, c.split_size = 0, c.rotary_dim = 0, c.softcap = 0, c.scale = 0;
    c.batch_index = false, c.mask = core::Mask::full(), c.lse = true, c.sinks = false;
    return c;
  }
  /// `change` is made to the tensors that the step has before it.
  template <typename Change>
  void expect_correct_with(const DecodeCase& c, const Change& change) {
    for (const Policy policy : {Policy::late, Policy::random}) {
      SCOPED_TRACE(testing::Message() << name_of(policy) << ": " << c);
      sim::Machine machine;
      machine.policy = policy, machine.multiprocessors = 2;
      DecodeTensors before(c), after(c);
      change(before), change(after);
      run(GetParam(), after, workspace_, machine);
      expect_correct(after, before);
    }
  }
  Workspace workspace_;
};

INSTANTIATE_TEST_SUITE_P(Variants, DecodeReferences, testing::ValuesIn(variants()), test_name<DecodeVariant>);

TEST_P(DecodeReferences, ScoresThatGrowFromBlockToBlockEqualTheOracle) {
  const int block = GetParam().block_n;
  // By 2, some columns ask for a higher reference and others do not; by 4, all do, and what was before
  // vanishes.
  for (const double growth : {2., 4.}) {
    const DecodeCase c = step({5 * block - 7}, std::max(1, GetParam().query_rows - 3));
    expect_correct_with(c, [&](DecodeTensors& t) { grow_keys(t, block, growth); });
  }
}

TEST_P(DecodeReferences, OneKeyFarAboveAllOthersIsSeenByEveryWarp) {
  // Of each warp's rows of a block one.
  const int block = GetParam().block_n;
  for (const int token : {block, 2 * block + 17, 2 * block + 46, 3 * block + 63}) {
    const DecodeCase c = step({4 * block}, GetParam().query_rows);
    SCOPED_TRACE(token);
    expect_correct_with(c, [&](DecodeTensors& t) { multiply_key(t, 0, token, 24); });
  }
}

/// A key that is the query times a factor: the exponential of its score is 2^`octaves`.
void make_key_of_score(DecodeTensors& t, std::int64_t token, double octaves) {
  const auto [page, row] = t.place(0, token);
  double square = 0;
  for (std::int64_t d = 0; d < t.setup.head_dim; ++d) square += t.q.at(0, 0, 0, d) * t.q.at(0, 0, 0, d);
  const double factor =
      octaves * std::numbers::ln2 * std::sqrt(static_cast<double>(t.setup.head_dim)) / square;
  for (std::int64_t d = 0; d < t.setup.head_dim; ++d)
    t.k_cache.set(page, row, 0, d, static_cast<float>(factor * t.q.at(0, 0, 0, d)));
}

// The reference stays at the first key's score: no probability is 1, and the second key's is nearly all there
// is. A standard implementation has no rounding of it.
TEST_P(DecodeReferences, AKeyThatOutweighsAllOthersBelowTheHeadRoomIsNotRounded) {
  if (GetParam().eight_bit() || GetParam().two_part_keys || GetParam().values_in_keys()) GTEST_SKIP();
  const int block = GetParam().block_n;
  for (const bool lse : {false, true}) {
    for (const double above : {5.3, 6.7, 7.6}) {
      DecodeCase c = step({3 * block}, 1);
      c.lse = lse;
      SCOPED_TRACE(above);
      expect_correct_with(c, [&](DecodeTensors& t) {
        make_key_of_score(t, 5, 40);
        make_key_of_score(t, block + 20, 40 + above);
      });
    }
  }
}

TEST_P(DecodeReferences, ScoresThatFallFromBlockToBlockEqualTheOracle) {
  const int block = GetParam().block_n;
  const DecodeCase c = step({4 * block + 1}, GetParam().query_rows);
  expect_correct_with(c, [&](DecodeTensors& t) { grow_keys(t, block, 0.25); });
}

TEST_P(DecodeReferences, FullCachesEndWithinABlock) {
  const int block = GetParam().block_n;
  for (const int over : {1, 40, 64, 100}) {
    const std::int32_t keys = 2 * block + over;
    DecodeCase c = step({keys, keys - 1, 3, keys}, 2);
    expect_correct_with(c, [](DecodeTensors&) {});
    if (GetParam().values_in_keys()) continue;
    c.new_len = 1, c.lengths = {keys - 1, keys - 2, keys - 1};
    expect_correct_with(c, [](DecodeTensors&) {});
  }
}

TEST_P(DecodeReferences, FullCachesOfPagesEndWithinABlock) {
  const int block = GetParam().block_n;
  DecodeCase c = step({block + 16, block + 15, 16}, 2);
  c.page_size = 16;
  expect_correct_with(c, [](DecodeTensors&) {});
}

}  // namespace
}  // namespace tandem::test
