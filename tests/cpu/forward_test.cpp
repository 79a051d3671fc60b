// The fast backend against the oracle, on each instruction set of this machine.
#include "cpu/forward.h"

#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <string>

#include "cpu/parallel.h"
#include "tests/cpu/targets.h"
#include "tests/cpu/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

/// What each problem's result has to be near to; the same for every instruction set.
struct Expected {
  cpu::ReferenceValues reference;
  ForwardValues standard;

  explicit Expected(const core::ForwardProblem& p)
      : reference(cpu::reference_values(p)), standard(standard_forward(p)) {}
};

/// Runs the fast backend into poisoned outputs.
void run(ForwardTensors& t) {
  const core::ForwardProblem problem = t.problem();
  Workspace workspace(cpu::forward_workspace(problem));
  t.o.poison();
  t.lse.poison();
  cpu::forward(problem, workspace.data());
  EXPECT_TRUE(workspace.guards_intact());
}

void expect_result(ForwardTensors& t, const Expected& expected) {
  run(t);
  const Comparison o = compare(t.o.values(), expected.standard.o, expected.reference.o);
  EXPECT_TRUE(o) << "o: " << o;
  EXPECT_TRUE(t.o.guards_intact());
  if (!t.setup.lse) {
    EXPECT_TRUE(t.lse.untouched());
    return;
  }
  const Comparison lse = compare(t.lse.values(), expected.standard.lse, expected.reference.lse);
  EXPECT_TRUE(lse) << "lse: " << lse;
  EXPECT_TRUE(t.lse.guards_intact());
}

void expect_correct(ForwardTensors& t) {
  SCOPED_TRACE(::testing::PrintToString(t.setup));
  const Expected expected(t.problem());
  on_each_target([&] { expect_result(t, expected); });
}

void expect_correct(const ForwardCase& c) {
  ForwardTensors t(c);
  expect_correct(t);
}

std::int64_t random_length(Random& random) {
  switch (random() % 4) {
    case 0:
      return static_cast<std::int64_t>(random() % 5);  // 0 too
    case 1:
      return static_cast<std::int64_t>(random() % 320);
    default:
      return static_cast<std::int64_t>(random() % 70);
  }
}

ForwardCase random_case(std::uint64_t seed) {
  Random random(seed);
  ForwardCase c;
  c.seed = seed;
  c.dtype = static_cast<tandem_dtype>(TANDEM_BF16 + random() % 3);
  c.batch = static_cast<std::int64_t>(1 + random() % 2);
  c.q_len = random_length(random);
  c.k_len = random_length(random);
  c.kv_heads = static_cast<std::int64_t>(1 + random() % 2);
  c.q_heads = c.kv_heads * static_cast<std::int64_t>(1 + random() % 4);
  c.head_dim = static_cast<std::int64_t>(8 + random() % 32 * 8);
  c.mask = random_mask(random, c.q_len, c.k_len);
  c.scale = random() % 4 == 0 ? 0.3f : 0.0f;
  c.softcap = random() % 4 == 0 ? 5.0f : 0.0f;
  c.lse = random() % 4 != 0;
  for (Layout* layout : {&c.q, &c.k, &c.v}) *layout = random_input_layout(random);
  for (Layout* layout : {&c.o, &c.lse_layout}) *layout = random_layout(random);
  return c;
}

/// NaN in every key and value row that no query sees.
void poison_unseen_rows(ForwardTensors& t) {
  const ForwardCase& c = t.setup;
  std::vector<bool> seen(static_cast<std::size_t>(c.k_len), false);
  for (std::int64_t i = 0; i < c.q_len; ++i) {
    const core::KeyRange keys = c.mask.visible_keys(i, c.q_len, c.k_len);
    for (std::int64_t s = keys.begin; s < keys.end; ++s) seen[static_cast<std::size_t>(s)] = true;
  }
  const auto poison = [&](HostTensor& tensor, const Layout& layout) {
    if (layout.broadcast[1]) return;  // one row is all rows
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t s = 0; s < c.k_len; ++s)
        for (std::int64_t h = 0; h < c.kv_heads && !seen[static_cast<std::size_t>(s)]; ++h)
          for (std::int64_t e = 0; e < c.head_dim; ++e) tensor.set(b, s, h, e, NAN);
  };
  poison(t.k, c.k);
  poison(t.v, c.v);
}

TEST(CpuForward, RandomProblemsMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 100; ++seed) {
    ForwardTensors t(random_case(seed));
    poison_unseen_rows(t);
    expect_correct(t);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(CpuForward, EveryHeadDim) {
  for (std::int64_t d = 8; d <= 512; d += 8) {
    ForwardCase c;
    c.q_len = 37, c.k_len = 150, c.q_heads = 2, c.head_dim = d, c.mask = core::Mask::causal();
    c.dtype = static_cast<tandem_dtype>(TANDEM_BF16 + d / 8 % 3);
    expect_correct(c);
  }
}

TEST(CpuForward, ManyBlocksAndTiles) {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.q_len = 700, c.k_len = 900, c.head_dim = 64, c.mask = {300, 20};
  expect_correct(c);
}

TEST(CpuForward, TallTiles) {
  ForwardCase c;
  c.batch = 16, c.kv_heads = 8, c.q_heads = 8;  // enough tasks for the tallest tile
  c.q_len = 260, c.k_len = 33, c.head_dim = 8, c.mask = core::Mask::causal();
  expect_correct(c);
}

TEST(CpuForward, DecodingStepOfAGroup) {
  ForwardCase c;
  c.q_len = 1, c.k_len = 1000, c.q_heads = 24, c.kv_heads = 3, c.head_dim = 128,
  c.mask = core::Mask::causal();
  expect_correct(c);
}

TEST(CpuForward, GrowingScoresRescaleWhatWasSummed) {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.q_len = 20, c.k_len = 600, c.head_dim = 16, c.scale = 1;
  ForwardTensors t(c);
  for (std::int64_t s = 0; s < c.k_len; ++s)
    for (std::int64_t e = 0; e < c.head_dim; ++e)
      t.k.set(0, s, 0, e, static_cast<float>(t.k.at(0, s, 0, e) * 0.01 * static_cast<double>(s)));
  expect_correct(t);
}

TEST(CpuForward, LargeScoresDoNotOverflow) {
  ForwardCase c;
  c.q_len = 33, c.k_len = 200, c.head_dim = 64, c.scale = 40;
  expect_correct(c);
}

/// Keys of equal scores weigh the same, and lse is their score and the logarithm of their number.
void expect_equal_weights(ForwardCase c, float q_value, float k_value) {
  c.scale = 1;
  ForwardTensors t(c);
  make_scores_equal(t, q_value, k_value);
  const double score = t.q.at(0, 0, 0, 0) * t.k.at(0, 0, 0, 0);
  const std::vector<double> halves(t.o.values().size(), 0.5);
  const std::vector<double> lse(t.lse.values().size(), score + std::log(static_cast<double>(c.k_len)));
  SCOPED_TRACE(testing::Message() << c << " scores of " << score);
  run(t);
  EXPECT_LE(largest_difference(t.o.values(), halves), 3e-5);  // both sums are of thousands of blocks, in fp32
  EXPECT_LE(largest_difference(t.lse.values(), lse), lse_tolerance);
}

TEST(CpuForward, AMillionEqualKeysWeighTheSame) {
  ForwardCase c;
  c.dtype = TANDEM_FP32, c.q_len = 3, c.k_len = 1 << 20, c.head_dim = 8;
  for (const float score : {0.f, 50.f, -1001.f, 9940.f}) expect_equal_weights(c, 1, score);
}

TEST(CpuForward, ScoresOfAnySizeWeighByTheirDifferences) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP32}) {
    ForwardCase c;
    c.dtype = dtype, c.q_len = 2, c.k_len = 400, c.head_dim = 8;
    on_each_target([&] {
      for (int exponent = 10; exponent < 100; ++exponent) {
        expect_equal_weights(c, 1.37f, std::ldexp(1.71f, exponent));
        expect_equal_weights(c, -1.37f, std::ldexp(1.71f, exponent));
      }
    });
  }
  ForwardCase c;
  c.dtype = TANDEM_FP16, c.q_len = 2, c.k_len = 400, c.head_dim = 64;
  expect_equal_weights(c, 60'000, 60'000);
}

// Of scores that differ by one unit in the last place, up to where that is worlds apart. Not of instruction
// sets without a fused multiply-add: they round every exponent of 2 by half a unit.
TEST(CpuForward, NeighbouringLargeScoresMatchTheOracle) {
  ForwardCase c;
  c.dtype = TANDEM_FP32, c.q_len = 1, c.k_len = 600, c.head_dim = 8, c.scale = 1;
  for (int exponent = 20; exponent < 40; ++exponent) {
    ForwardTensors t(c);
    make_scores_equal(t, 1, std::ldexp(1.37f, exponent));
    for (std::int64_t s = 0; s < c.k_len; s += 7) {
      t.k.set(0, s, 0, 0, std::nextafter(std::ldexp(1.37f, exponent), s % 2 == 0 ? 0.f : INFINITY));
    }
    SCOPED_TRACE(exponent);
    const cpu::ReferenceValues reference = cpu::reference_values(t.problem());
    run(t);
    EXPECT_LE(largest_difference(t.o.values(), reference.o), 1e-5);
    EXPECT_LE(largest_difference(t.lse.values(), reference.lse), lse_tolerance);
  }
}

TEST(CpuForward, LongSequencesWithACommonOffsetMatchTheOracle) {
  for (const float offset : {0.f, 50.f, 1e4f}) {
    ForwardCase c;
    c.dtype = TANDEM_FP32, c.q_len = 16, c.k_len = 1 << 17, c.head_dim = 16, c.scale = 0.25f;
    ForwardTensors t(c);
    offset_scores(t, 1, 4 * offset);
    SCOPED_TRACE(offset);
    const Expected expected(t.problem());
    expect_result(t, expected);
    EXPECT_LE(largest_difference(t.lse.values(), expected.reference.lse), lse_tolerance);
  }
}

TEST(CpuForward, SoftcapOfLargeScores) {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.q_len = 33, c.k_len = 200, c.head_dim = 64, c.scale = 40, c.softcap = 30;
  expect_correct(c);
}

/// Keys of two blocks, whose scores are one number times a head's first element, and values 1 and 2.
void give_two_scores(ForwardTensors& t, const std::array<float, 2>& first) {
  t.q.fill(0), t.k.fill(0);
  t.q.set(0, 0, 0, 0, 1);
  for (std::int64_t key = 0; key < t.setup.k_len; ++key) {
    const std::size_t half = key < t.setup.k_len / 2 ? 0 : 1;
    t.k.set(0, key, 0, 0, first[half]);
    for (std::int64_t e = 0; e < t.setup.head_dim; ++e) t.v.set(0, key, 0, e, half == 0 ? 1.f : 2.f);
  }
}

// Beyond 2^127 / log2(e) the factor's next power of two is no float. With it 2^-98 makes an exponent of about
// 2^30, from where on the factor is that power.
TEST(CpuForward, FactorsNextToTheLargestFloat) {
  const std::array<float, 2> scores[] = {
      {1e-25f, 2e-25f},         {2e-25f, 1e-25f}, {3.20e-30f, 3.30e-30f}, {3.30e-30f, 3.20e-30f},
      {-3.20e-30f, -3.30e-30f}, {0.f, 2e-38f},    {-1e-25f, -1e-25f}};
  for (const float scale : {1e38f, 1.2e38f, 2e38f, 2.3e38f})
    for (const bool capped : {false, true})
      for (const auto& first : scores) {
        ForwardCase c;
        c.dtype = TANDEM_FP32, c.q_len = 1, c.k_len = 256, c.head_dim = 8, c.scale = scale;
        if (capped) c.scale = 1, c.softcap = scale;
        SCOPED_TRACE(::testing::Message() << scale << " " << capped << " " << first[0] << " " << first[1]);
        ForwardTensors t(c);
        give_two_scores(t, capped ? std::array{first[0] * scale, first[1] * scale} : first);
        const cpu::ReferenceValues expected = cpu::reference_values(t.problem());
        on_each_target([&] {
          run(t);
          EXPECT_NEAR(t.o.at(0, 0, 0, 5), expected.o[5], 1e-5);
          const double lse = expected.lse[0];
          EXPECT_NEAR(t.lse.at(0, 0, 0, 0), lse, std::max(1e-5, 1e-5 * std::abs(lse)));
        });
      }
}

TEST(CpuForward, SlopesBesideAFactorNextToTheLargestFloat) {
  ForwardCase c;
  c.dtype = TANDEM_FP32, c.q_len = 1, c.k_len = 20, c.head_dim = 8, c.scale = 2e38f;
  ForwardTensors t(c);
  t.q.fill(0);
  const float slope = 0.25f;
  core::ForwardProblem p = t.problem();
  p.slopes = {&slope, 0};
  const cpu::ReferenceValues expected = cpu::reference_values(p);
  on_each_target([&] {
    Workspace workspace(cpu::forward_workspace(p));
    cpu::forward(p, workspace.data());
    for (std::int64_t e = 0; e < 8; ++e)
      EXPECT_NEAR(t.o.at(0, 0, 0, e), expected.o[static_cast<std::size_t>(e)], 1e-5);
    EXPECT_NEAR(t.lse.at(0, 0, 0, 0), expected.lse[0], 1e-5);
  });
}

TEST(CpuForward, NothingToDoWritesNothing) {
  for (std::int64_t ForwardCase::*length : {&ForwardCase::q_len, &ForwardCase::batch}) {
    ForwardCase c;
    c.*length = 0;
    ForwardTensors t(c);
    on_each_target([&] { run(t); });
    EXPECT_TRUE(t.o.untouched());
    EXPECT_TRUE(t.lse.untouched());
  }
}

TEST(CpuForward, WithoutKeysOutputIsZeroAndLseMinusInfinity) {
  ForwardCase c;
  c.q_len = 40, c.k_len = 0;
  ForwardTensors t(c);
  on_each_target([&] {
    run(t);
    for (const double o : t.o.values()) ASSERT_EQ(o, 0);
    for (const double lse : t.lse.values()) ASSERT_EQ(lse, -std::numeric_limits<double>::infinity());
  });
}

TEST(CpuForward, KeysWithoutAnyWeightCountAsUnseen) {
  ForwardCase c;
  c.q_len = 3, c.k_len = 300;
  ForwardTensors t(c);
  t.q.fill(1);
  t.k.fill(-std::numeric_limits<float>::infinity());
  expect_correct(t);
}

TEST(CpuForward, NanReachesTheQueriesThatSeeIt) {
  ForwardCase c;
  c.q_len = 40, c.k_len = 300;
  for (HostTensor ForwardTensors::*tensor : {&ForwardTensors::q, &ForwardTensors::k, &ForwardTensors::v}) {
    ForwardTensors t(c);
    (t.*tensor).set(0, 13, 0, 7, NAN);
    expect_correct(t);
  }
}

TEST(CpuForward, WhatIsNotFiniteReachesNoQueryThatDoesNotSeeIt) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 60; ++seed) {
    Random random(~seed);
    ForwardCase c = random_case(seed);
    c.q_len = 1 + static_cast<std::int64_t>(random() % 70),
    c.k_len = 1 + static_cast<std::int64_t>(random() % 300);
    c.mask = {static_cast<std::int64_t>(random() % 150), static_cast<std::int64_t>(random() % 20)};
    for (Layout* layout : {&c.k, &c.v}) *layout = Layout{};
    ForwardTensors t(c);
    for (HostTensor ForwardTensors::*tensor : {&ForwardTensors::k, &ForwardTensors::v})
      for (const float value : {NAN, INFINITY, -INFINITY})
        (t.*tensor).set(0, static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.k_len)), 0,
                        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.head_dim)), value);
    expect_correct(t);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(CpuForward, InfinitiesAndNanOfEveryDtype) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32})
    for (const float value : {NAN, INFINITY}) {
      ForwardCase c;
      c.dtype = dtype;
      c.q_len = 3, c.k_len = 20, c.head_dim = 24;
      ForwardTensors t(c);
      t.v.set(0, 7, 0, 9, value);
      expect_correct(t);
    }
}

TEST(CpuForward, MoreKeysThan32BitsCount) {
  ForwardCase c;
  c.q_len = 3, c.k_len = 1, c.head_dim = 16;
  ForwardTensors t(c);
  core::ForwardProblem p = t.problem();
  p.k.shape[1] = p.v.shape[1] = std::int64_t{1} << 40;  // all of them one row
  p.k.stride[1] = p.v.stride[1] = 0;
  p.mask = {5, 0};
  Workspace workspace(cpu::forward_workspace(p));
  cpu::forward(p, workspace.data());
  const std::vector<double> v = t.v.values(), o = t.o.values();
  for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], v[i % v.size()], 1e-2);
}

TEST(CpuForward, SameBitsForEveryNumberOfThreads) {
  for (std::uint64_t seed = 900; seed < 912; ++seed) {
    ForwardTensors one(random_case(seed)), several(random_case(seed));
    SCOPED_TRACE(::testing::PrintToString(one.setup));
    cpu::set_thread_count(1);
    run(one);
    for (const int count : {2, 3, 8}) {
      cpu::set_thread_count(count);
      run(several);
      const auto same = [](const HostTensor& a, const HostTensor& b) {
        return std::memcmp(a.storage().data(), b.storage().data(), a.storage().size()) == 0;
      };
      EXPECT_TRUE(same(one.o, several.o)) << count << " threads";
      EXPECT_TRUE(same(one.lse, several.lse)) << count << " threads";
    }
  }
  cpu::set_thread_count(0);
}

TEST(CpuForward, WorkspaceDoesNotGrowWithTheLengths) {
  ForwardCase c;
  c.q_heads = c.kv_heads = 16, c.head_dim = 256;
  core::ForwardProblem p = ForwardTensors(c).problem();
  p.q.shape[1] = p.k.shape[1] = std::int64_t{1} << 14;
  const std::size_t bytes = cpu::forward_workspace(p);
  p.q.shape[1] = p.k.shape[1] = std::int64_t{1} << 40;
  EXPECT_EQ(cpu::forward_workspace(p), bytes);
  EXPECT_LE(bytes, static_cast<std::size_t>(cpu::thread_count()) << 20);
}

TEST(CpuForward, NamesItsInstructionSet) {
  std::set<std::string> names;
  on_each_target([&] { names.insert(cpu::simd_name()); });
  EXPECT_EQ(names.size(), hwy::SupportedAndGeneratedTargets().size());
}

}  // namespace
}  // namespace tandem::test
