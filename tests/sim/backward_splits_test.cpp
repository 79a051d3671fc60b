// How many splits of a group of query heads the backward's plan chooses.
#include <gtest/gtest.h>

#include "backward/plan.h"
#include "tests/sim/backward_problems.h"

namespace tandem::test {
namespace {

using namespace backward_problems;

TEST(BackwardSplits, GroupsAreSplitWhereTilesDoNotFillTheChip) {
  const auto splits = [](const Drawn& x, const core::Mask& mask) {
    core::BackwardProblem p = problem_of(x);
    p.mask = mask;
    return backward::choose(p).splits;
  };
  const core::Mask full = core::Mask::full(), causal = core::Mask::causal();
  EXPECT_GE(splits({2, 767, 767, 32, 1, 128}, full), 8) << "12 tiles of 32 heads each";
  EXPECT_EQ(splits({1, 5761, 5761, 28, 4, 64}, causal), 7)
      << "the longest of 184 tiles has a third of a round";
  EXPECT_EQ(splits({16, 4096, 4096, 32, 8, 128}, causal), 1) << "31 rounds";
  EXPECT_EQ(splits({3, 2687, 2687, 16, 2, 128}, full), 1) << "126 tiles of the same length";
  EXPECT_EQ(splits({2, 767, 767, 32, 32, 128}, full), 1) << "no groups";
  EXPECT_EQ(splits({1, 1, 1, 2, 1, 64}, full), 2) << "9.4 us, of one split 10.2";
  EXPECT_EQ(splits({2, 37, 37, 16, 8, 128}, full), 1) << "a sum over splits takes longer";
  EXPECT_EQ(splits({2, 63, 63, 64, 8, 128}, causal), 4) << "18.5 us, of one split 26.7";
  EXPECT_GT(splits({1, 1000, 1000, 8, 1, 256}, causal), 1) << "roles";
}

/// Many heads on one with long keys would keep much for a part of the grid's last round.
TEST(BackwardSplits, KeepAtMost256MB) {
  const auto kept_bytes = [](const core::BackwardProblem& p, const backward::Choice& choice) {
    return 2 * sizeof(float) *
           static_cast<std::size_t>(backward::kept_plan(backward::crop(p), choice).elements);
  };
  core::BackwardProblem p = problem_of({1, 56000, 56000, 32, 1, 128});
  p.mask = core::Mask::full();
  EXPECT_LE(kept_bytes(p, backward::choose(p)), std::size_t{256} << 20);
  int most = 0;
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    const auto draw = [&random](std::uint64_t most) {
      return static_cast<std::int64_t>(1 + random() % most);
    };
    const std::int64_t group = std::int64_t{1} << draw(5), heads = draw(4),
                       length = std::int64_t{64} << draw(10);
    p = problem_of({draw(4), length + draw(200), length + draw(200), group * heads, heads, 64 * draw(4)});
    p.mask = draw(2) == 1 ? core::Mask::full() : core::Mask::causal();
    const backward::Choice choice = backward::choose(p);
    EXPECT_LE(kept_bytes(p, choice), std::size_t{256} << 20) << p.k_len() << " keys of " << p.kv_heads();
    most = std::max(most, choice.splits);
  }
  EXPECT_GE(most, 8);
}

/// What the choice says of a problem, which has to be so for any.
TEST(BackwardSplits, DivideTheGroup) {
  for_each_draw([](const core::BackwardProblem& p) {
    const int splits = backward::choose(p).splits;
    EXPECT_GE(splits, 1);
    EXPECT_EQ(p.group() % splits, 0);
  });
}

}  // namespace
}  // namespace tandem::test
