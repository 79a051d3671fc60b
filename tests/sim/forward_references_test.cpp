// Scores that rise and fall from block to block, so that references that stay have to be raised behind a
// tile's first block (tile/lazy_softmax.h).
#include <cstdint>
#include <cstdlib>
#include <gtest/gtest.h>
#include <numbers>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "tests/sim/forward_draws.h"
#include "tests/sim/simulated_forward.h"
#include "tests/support/forward_case.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::ForwardCase;
using test::ForwardTensors;

std::vector<ForwardVariant> variants() {
  std::vector<ForwardVariant> all = sim::forward_variants();
  std::erase_if(all, [](const ForwardVariant& v) { return !v.references_stay(); });
  return all;
}

class ForwardReferences : public testing::TestWithParam<ForwardVariant> {
 protected:
  /// One head of all queries of a tile on `blocks` blocks of keys, all of which they see.
  static ForwardCase on_blocks(int blocks) {
    const ForwardVariant& variant = GetParam();
    ForwardCase c = test::draw_case(variant, test::seed_of(sim::name_of(variant), 4));
    test::keep_one_head(c);
    c.q_len = variant.block_m, c.k_len = std::int64_t{blocks} * variant.block_n, c.mask = core::Mask::full();
    c.head_dim = variant.head_dim, c.softcap = variant.softcap ? 1e4f : 0.f, c.scale = 0.125f, c.lse = true;
    return c;
  }
  /// Scores get octaves_of(key), more of even queries, by way of the first two columns.
  template <typename OctavesOf>
  static void expect_correct_with(int blocks, const OctavesOf& octaves_of) {
    const ForwardCase c = on_blocks(blocks);
    ForwardTensors tensors(c);
    for (std::int64_t query = 0; query < c.q_len; ++query)
      tensors.q.set(0, query, 0, 0, query % 2 == 0 ? 8.f : 0.f), tensors.q.set(0, query, 0, 1, 8);
    for (std::int64_t key = 0; key < c.k_len; ++key) {
      const auto [of_even_queries, of_all] = octaves_of(key);
      tensors.k.set(0, key, 0, 0, static_cast<float>(of_even_queries * std::numbers::ln2));
      tensors.k.set(0, key, 0, 1, static_cast<float>(of_all * std::numbers::ln2));
    }
    test::expect_correct(GetParam(), tensors, c);
  }
  struct Octaves {
    double of_even_queries, of_all;
  };
};

INSTANTIATE_TEST_SUITE_P(Variants, ForwardReferences, testing::ValuesIn(variants()),
                         test::test_name<ForwardVariant>);

// Of even queries blocks rise by more than the head room, of odd ones by less.
TEST_P(ForwardReferences, ScoresThatRiseFromBlockToBlockEqualTheOracle) {
  for (const double sign : {1., -1.}) {
    expect_correct_with(5, [&](std::int64_t key) {
      const double block = sign * static_cast<double>(key / GetParam().block_n);
      return Octaves{9 * block, 3 * block};
    });
  }
}

// The maximum of numbers that are all negative is not what their bits say.
TEST_P(ForwardReferences, NegativeScoresThatRiseEqualTheOracle) {
  for (const double sign : {1., -1.}) {
    expect_correct_with(4, [&](std::int64_t key) {
      const double block = static_cast<double>(key / GetParam().block_n);
      return Octaves{0, -400 + sign * 90 * block};
    });
  }
}

TEST_P(ForwardReferences, OneKeyFarAboveAllOthersIsSeenByEveryRow) {
  const int block = GetParam().block_n;
  for (const int above : {0, block + 1, 2 * block + block / 2 + 6, 3 * block - 1}) {
    expect_correct_with(3, [&](std::int64_t key) {
      return Octaves{key == above ? 60. : 0., key == above ? 30. : 0.};
    });
  }
}

// Below the head room the reference stays, and the largest probability is not 1. A standard implementation
// has no rounding of it.
TEST_P(ForwardReferences, AKeyThatOutweighsAllOthersBelowTheHeadRoomIsNotRounded) {
  const int block = GetParam().block_n;
  for (const double above : {5.3, 6.7, 7.6}) {
    for (const int top : {5, block + 20, 2 * block + 3}) {
      expect_correct_with(3, [&](std::int64_t key) {
        const bool other = std::abs(key - top) == block;
        return Octaves{0, key == top ? 60 + above : other ? 60 : 0.};
      });
    }
  }
}

}  // namespace
}  // namespace tandem
