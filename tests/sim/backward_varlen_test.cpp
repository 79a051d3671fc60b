// The backward of variable lengths on the software Hopper: drawn batches, all policies, each sequence against
// the oracle of a call of its own.
//
// TANDEM_SIM_RUNS sets how many problems each test draws; TANDEM_SIM_SEED replays a single one.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

#include "apps/sim/backward_sim.h"
#include "backward/list.h"
#include "backward/varlen_plan.h"
#include "tests/sim/backward_draws.h"
#include "tests/support/varlen_backward_case.h"

namespace tandem {
namespace {

using backward::BackwardVariant;
using test::VarlenBackwardCase;
using test::VarlenBackwardTensors;

/// A case, and what is right for it.
struct Problem {
  backward::Choice choice;
  VarlenBackwardTensors inputs;
  test::VarlenBackwardExpected expected;

  Problem(const backward::Choice& kernels, const VarlenBackwardCase& c)
      : choice(kernels), inputs(c), expected(inputs) {}

  /// Runs it with fresh outputs.
  void check(const sim::Machine& machine) const {
    VarlenBackwardTensors tensors(inputs);
    const hw::sim::Report report = sim::simulate_backward(tensors.problem(), choice, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(test::failure_of(tensors, expected), "");
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) {
    return out << problem.inputs.setup;
  }
};

/// A batch that the variant serves: lengths around its tiles' ends, some of several tiles.
VarlenBackwardCase draw_case(const BackwardVariant& variant, std::uint64_t seed) {
  test::Random random(seed);
  const tandem_dtype dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  VarlenBackwardCase c = test::random_varlen_backward_case(seed, dtype, 2 * variant.block_n, true);
  test::ForwardCase& f = c.each.forward;
  f.nearly_normal = true;
  f.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  f.q_heads = f.kv_heads * (1 + static_cast<std::int64_t>(random() % 2));
  f.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  f.softcap = variant.softcap ? 1.f + static_cast<float>(random() % 30) : 0.f;
  return c;
}

class VarlenBackwardOnSim : public testing::TestWithParam<BackwardVariant> {};
/// Whose variants have the ring of sums.
class VarlenBackwardRingOnSim : public VarlenBackwardOnSim {};

INSTANTIATE_TEST_SUITE_P(Variants, VarlenBackwardOnSim,
                         testing::ValuesIn(backward::all_variants(backward::Lengths::varlen)),
                         test::test_name<BackwardVariant>);

INSTANTIATE_TEST_SUITE_P(Variants, VarlenBackwardRingOnSim,
                         testing::ValuesIn(test::variants_with_ring(backward::Lengths::varlen)),
                         test::test_name<BackwardVariant>);

TEST_P(VarlenBackwardOnSim, DrawnBatchesEqualTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_backward_test --gtest_filter=Variants/VarlenBackwardOnSim", 3,
                     [](std::uint64_t seed) {
                       return Problem(backward::choice_with(GetParam()), draw_case(GetParam(), seed));
                     });
}

// Few queries see all of the many keys, of more tiles than make sections of heads overlap.
TEST_P(VarlenBackwardRingOnSim, SectionsOfHeadsThatOverlapEqualTheOracle) {
  test::for_each_run("sim_backward_test --gtest_filter=Variants/VarlenBackwardRingOnSim", 2,
                     [](std::uint64_t seed) {
                       VarlenBackwardCase c = draw_case(GetParam(), seed);
                       test::Random random(seed);
                       const auto draw = [&random](int least, std::uint64_t more) {
                         return least + static_cast<std::int64_t>(random() % more);
                       };
                       c.q_packed = c.k_packed = true;
                       c.used.clear(), c.max_seqlen_q = c.max_seqlen_k = 0;
                       c.q_rows = {draw(20, 40), draw(1, 9), draw(20, 40), draw(70, 60)};
                       c.k_rows = {draw(500, 200), draw(1, 300), draw(400, 300), draw(1, 200)};
                       c.each.forward.q_heads = c.each.forward.kv_heads = 3;
                       c.each.forward.mask = core::Mask::causal();
                       backward::Choice choice = backward::choice_with(GetParam());
                       // A head is a section, and the ring's places serve several; or two are, the last one
                       // of three alone, where there are few queries.
                       const std::int64_t rows = random() % 2 == 0 ? 0 : draw(120, 120);
                       choice.cached_bytes = 1 + rows * 2 * 4 * c.each.forward.head_dim;
                       return Problem(choice, c);
                     });
}

// As above, and no tile is the only one of its part.
TEST_P(VarlenBackwardRingOnSim, HeadsThatFollowOneAnotherInTheRingEqualTheOracle) {
  test::for_each_run(
      "sim_backward_test --gtest_filter=Variants/VarlenBackwardRingOnSim", 3, [](std::uint64_t seed) {
        VarlenBackwardCase c = draw_case(GetParam(), seed);
        test::Random random(seed);
        c.q_packed = c.k_packed = true;
        c.used.clear(), c.max_seqlen_q = 0, c.max_seqlen_k = 0;
        c.q_rows.clear(), c.k_rows.clear();
        for (int i = 0; i < 5; ++i) {
          c.q_rows.push_back(1 + static_cast<std::int64_t>(random() % 90));
          c.k_rows.push_back(GetParam().block_n + 1 + static_cast<std::int64_t>(random() % 200));
        }
        c.max_seqlen_q = 90;
        c.each.forward.q_heads = c.each.forward.kv_heads * 2;
        c.each.forward.mask = random() % 2 == 0 ? core::Mask::full() : core::Mask::causal();
        backward::Choice choice = backward::choice_with(GetParam());
        choice.cached_bytes = 1;
        Problem problem(choice, c);
        const backward::VarlenBounds bounds = backward::bounds_of(problem.inputs.problem(), choice);
        EXPECT_LT(bounds.places, bounds.parts) << "or nothing is reused";
        return problem;
      });
}

// A place serves a part with sums, then one that a single tile computes without any, then one with sums.
TEST_P(VarlenBackwardRingOnSim, PlacesOfTheRingThatATileAlonePassesOnEqualTheOracle) {
  test::for_each_run(
      "sim_backward_test --gtest_filter=Variants/VarlenBackwardRingOnSim", 4, [](std::uint64_t seed) {
        VarlenBackwardCase c = draw_case(GetParam(), seed);
        test::Random random(seed);
        c.q_packed = c.k_packed = true;
        c.used.clear(), c.max_seqlen_q = 64, c.max_seqlen_k = 0;
        c.q_rows = {64, 50, 40, 30}, c.k_rows.clear();
        for (std::size_t i = 0; i < c.q_rows.size(); ++i)
          c.k_rows.push_back(i % 2 == 0 ? GetParam().block_n + 1 + static_cast<std::int64_t>(random() % 100)
                                        : 50 + static_cast<std::int64_t>(random() % 15));
        c.each.forward.q_heads = c.each.forward.kv_heads = 3;  // a sequence has all places
        c.each.forward.mask = core::Mask::full();
        backward::Choice choice = backward::choice_with(GetParam());
        choice.cached_bytes = 1;
        Problem problem(choice, c);
        const backward::VarlenBounds bounds = backward::bounds_of(problem.inputs.problem(), choice);
        EXPECT_LT(2 * bounds.places, bounds.parts) << "or no place serves three";
        return problem;
      });
}

// Tiles begin with their sequence, and add to dQ in their order, whatever runs beside them.
TEST_P(VarlenBackwardOnSim, ASequenceHasTheBitsOfACallOfItsOwn) {
  VarlenBackwardCase c = draw_case(GetParam(), 7);
  c.used.clear(), c.max_seqlen_q = c.max_seqlen_k = 0;
  c.q_packed = c.k_packed = true;
  c.q_rows = {150, 1, 70}, c.k_rows = {140, 33, 200};
  c.each.forward.mask = core::Mask::causal();
  VarlenBackwardTensors batch(c);
  const backward::Choice choice = backward::choice_with(GetParam());
  sim::Machine machine;
  machine.multiprocessors = 2;
  ASSERT_TRUE(sim::simulate_backward(batch.problem(), choice, machine).ok());
  for (std::size_t i = 0; i < batch.alone.size(); ++i) {
    test::BackwardTensors& own = batch.alone[i];
    const core::BackwardProblem p = own.problem();
    backward::Choice uniform = backward::choose(p);
    uniform.splits = 1;
    ASSERT_TRUE(sim::simulate_backward(p, uniform, machine).ok());
    EXPECT_TRUE(test::has_gradients(batch, i, own)) << "sequence " << i;
  }
}

/// Of the narrowest head dim, with sums of dQ.
const BackwardVariant& narrow_variant() {
  const std::vector<BackwardVariant>& all = backward::all_variants(backward::Lengths::varlen);
  return *std::find_if(all.begin(), all.end(), [](const BackwardVariant& v) { return v.adds_dq(); });
}

// A lane of the list's kernel reads several sequences. Order is by numbers alone, and some that follow one
// another have tiles enough to overlap.
TEST(VarlenBackwardList, OfManySequencesOfAsManyQueriesEqualsTheOracleUnderEveryPolicy) {
  test::for_each_run("sim_backward_test --gtest_filter=VarlenBackwardList", 2, [](std::uint64_t seed) {
    VarlenBackwardCase c = draw_case(narrow_variant(), seed);
    test::Random random(seed);
    c.q_packed = c.k_packed = true;
    c.used.clear(), c.max_seqlen_q = c.max_seqlen_k = 0;
    constexpr int sequences = 40, lanes = hw::warp_size;
    c.q_rows.assign(sequences, 9), c.k_rows.clear();
    for (int i = 0; i < sequences; ++i) {
      const int lane = i % lanes;
      const bool is_long = lane >= 2 && lane < 5;  // of 4, 5 and 6 tiles
      c.k_rows.push_back((is_long ? 110 + 140 * lane : 9) + static_cast<std::int64_t>(random() % 50));
    }
    c.each.forward.q_heads = c.each.forward.kv_heads = 1;
    c.each.forward.mask = core::Mask::causal();
    backward::Choice choice = backward::choice_with(narrow_variant());
    choice.cached_bytes = 1;
    return Problem(choice, c);
  });
}

// Lengths lie on the device, where nobody validates them.
TEST(VarlenBackwardOnHopper, TouchesNothingElseWhateverTheLengthsAre) {
  VarlenBackwardCase c = draw_case(narrow_variant(), 3);
  c.q_packed = c.k_packed = true;
  c.used = {0, 0, 0}, c.max_seqlen_q = c.max_seqlen_k = 0;
  c.q_rows = {60, 20, 40}, c.k_rows = {70, 30, 50};
  VarlenBackwardTensors t(c);
  t.cu_seqlens_q = {-7, 60, 1 << 30, -3}, t.cu_seqlens_k = {-1, 70, 1 << 30, 5};
  t.seqused_k = {1 << 30, 1 << 30, -9};
  const hw::sim::Report report =
      sim::simulate_backward(t.problem(), backward::choice_with(narrow_variant()), {});
  EXPECT_TRUE(report.ok()) << report.text();
}

// The lists have room for as many rows as the tensors have.
TEST(VarlenBackwardOnHopper, TouchesNothingElseWhereSequencesOverlap) {
  VarlenBackwardCase c = draw_case(narrow_variant(), 3);
  c.q_packed = c.k_packed = true;
  c.used.clear(), c.max_seqlen_q = c.max_seqlen_k = 0;
  c.q_rows = c.k_rows = {300, 200, 100, 0, 30, 400, 20};
  const VarlenBackwardTensors inputs(c);
  for (const bool of_queries : {true, false}) {
    VarlenBackwardTensors t(inputs);
    auto& starts = of_queries ? t.cu_seqlens_q : t.cu_seqlens_k;
    for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = i % 2 == 0 ? 0 : 1050;
    const hw::sim::Report report =
        sim::simulate_backward(t.problem(), backward::choice_with(narrow_variant()), {});
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// As many as that are of no list's room, and no lists of an int's.
TEST(VarlenBackwardOnHopper, CountsOfSequencesThatOverlapStopShortOfAnInt) {
  constexpr int many = 1 << 22, lanes = 32;
  backward::ListCounts counts{};
  for (int i = 0; i < 1 << 12; ++i) counts.add({many, many, many, many, many, 0}, true, true, true);
  for (const int count :
       {counts.key_tiles, counts.query_tiles, counts.seeing, counts.unseeing, counts.unseen}) {
    EXPECT_GE(std::int64_t{lanes} * count, std::int64_t{1} << 30);
    EXPECT_LE(std::int64_t{lanes} * count, INT32_MAX);
  }
}

TEST(VarlenBackwardOnHopper, EntriesOfOneRowMayHaveAnyStrideOfRows) {
  VarlenBackwardCase c = draw_case(narrow_variant(), 5);
  c.q_packed = c.k_packed = false;
  c.used.clear(), c.max_seqlen_q = c.max_seqlen_k = 0;
  c.q_rows = c.k_rows = {1, 1, 1};
  const VarlenBackwardTensors inputs(c);
  const test::VarlenBackwardExpected expected(inputs);
  VarlenBackwardTensors t(inputs);
  core::BackwardProblem p = t.problem();
  for (core::Tensor* tensor : {&p.q, &p.o, &p.lse, &p.dout, &p.dq, &p.k, &p.v, &p.dk, &p.dv})
    tensor->stride[1] = 0;
  const hw::sim::Report report = sim::simulate_backward(p, backward::choice_with(narrow_variant()), {});
  ASSERT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(test::failure_of(t, expected), "");
}

/// Sections as the list's kernel has them, of sequences with tiles, in their order; some overlap.
std::vector<backward::TileSections> draw_sections(test::Random& random) {
  std::vector<backward::TileSections> all;
  const auto draw = [&random](std::uint64_t most) { return static_cast<int>(1 + random() % most); };
  const int heads = draw(9), cached_rows = draw(3000);
  for (int left = draw(12); left > 0; --left)
    all.push_back(backward::TileSections::of({heads, 128, cached_rows, 0, draw(20), draw(3)}, draw(15),
                                             draw(700), random() % 3 != 0));
  return all;
}

TEST(VarlenBackwardOnHopper, ListsHaveEveryTileOnceAndThoseOfAHeadInOrder) {
  for (std::uint64_t seed = 1; seed <= 500 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const std::vector<backward::TileSections> all = draw_sections(random);
    std::vector<int> places;
    int first = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const backward::TileSections none, &own = all[i], &previous = i > 0 ? all[i - 1] : none,
                                         &next = i + 1 < all.size() ? all[i + 1] : none;
      for (int head = 0; head < own.heads; ++head)
        for (int number = 0; number < own.count; ++number) {
          places.push_back(first + own.place(head, number, previous, next));
          if (number > 0) {
            EXPECT_GT(places.back(), places[places.size() - 2]);
          }
        }
      first += own.count * own.heads;
    }
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < places.size(); ++i) ASSERT_EQ(places[i], static_cast<int>(i));
  }
}

TEST(VarlenBackwardOnHopper, NamesTheTensorsThatItCannotTake) {
  VarlenBackwardCase c;
  c.q_rows = {5, 5}, c.k_rows = {7, 7};
  c.q_packed = c.k_packed = false;
  const VarlenBackwardTensors t(c);
  const core::BackwardProblem good = t.problem();
  const auto message_of = [](const core::BackwardProblem& problem) {
    return std::string(backward::supported(problem).message());
  };
  EXPECT_EQ(message_of(good), "");
  core::BackwardProblem p = good;
  p.dk.stride[0] += 64;
  EXPECT_THAT(message_of(p), testing::HasSubstr("dk.stride[0]")) << "entries with a gap between them";
  p = good;
  p.v.stride[1] = std::int64_t{1} << 33, p.v.stride[0] = 7 * p.v.stride[1];
  EXPECT_THAT(message_of(p), testing::HasSubstr("v.stride[1]"));
  p = good;
  p.varlen.sequences = std::int64_t{1} << 22;
  EXPECT_THAT(message_of(p), testing::HasSubstr("2^28")) << "rows that are padded for each sequence";
}

// No length is read on the host.
TEST(VarlenBackwardOnHopper, TheWorkspaceDependsOnBoundsAlone) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const VarlenBackwardTensors t(test::random_varlen_backward_case(seed, TANDEM_BF16, 60, true));
    core::BackwardProblem p = t.problem();
    const std::size_t bytes = backward::workspace_bytes(p);
    const auto nowhere = [](const std::int32_t*& lengths) {
      if (lengths != nullptr) lengths = reinterpret_cast<const std::int32_t*>(16);
    };
    nowhere(p.varlen.cu_seqlens_q), nowhere(p.varlen.cu_seqlens_k), nowhere(p.varlen.seqused_k);
    EXPECT_EQ(backward::workspace_bytes(p), bytes) << "seed " << seed;
    const backward::VarlenBounds bounds = backward::bounds_of(p, backward::choose(p));
    std::int64_t padded = 0;
    for (std::size_t i = 0; i < t.alone.size(); ++i) padded += (t.setup.q_len(i) + 127) / 128 * 128;
    EXPECT_GE(bounds.seeing_rows, padded) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem
