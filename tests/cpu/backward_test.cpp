// The fast backend's backward pass against the oracle, on each instruction set of this machine.
#include "cpu/backward.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "cpu/parallel.h"
#include "tests/cpu/targets.h"
#include "tests/cpu/workspace.h"
#include "tests/support/backward_case.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

constexpr tandem_dtype dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};

/// What each problem's result has to be near to; the same for every instruction set.
struct Expected {
  cpu::ReferenceGradients reference;
  BackwardValues standard;

  explicit Expected(const core::BackwardProblem& p)
      : reference(cpu::reference_gradients(p)), standard(standard_backward(p)) {}
};

/// Runs the fast backend into poisoned outputs.
void run(BackwardTensors& t) {
  const core::BackwardProblem problem = t.problem();
  Workspace workspace(cpu::backward_workspace(problem));
  for (HostTensor* output : {&t.dq, &t.dk, &t.dv, &t.dsinks}) output->poison();
  cpu::backward(problem, workspace.data());
  EXPECT_TRUE(workspace.guards_intact());
}

void expect_result(BackwardTensors& t, const Expected& expected) {
  run(t);
  const Allowance allowance = gradient_allowance(t.problem());
  const auto expect_near = [&](const char* name, const HostTensor& result,
                               const std::vector<double>& standard, const std::vector<double>& reference) {
    const Comparison comparison = compare(result.values(), standard, reference, allowance);
    EXPECT_TRUE(comparison) << name << ": " << comparison;
    EXPECT_TRUE(result.guards_intact()) << name;
  };
  expect_near("dq", t.dq, expected.standard.dq, expected.reference.dq);
  expect_near("dk", t.dk, expected.standard.dk, expected.reference.dk);
  expect_near("dv", t.dv, expected.standard.dv, expected.reference.dv);
  EXPECT_EQ(t.dsinks_failure(), "");
}

void expect_correct(BackwardTensors& t) {
  SCOPED_TRACE(::testing::PrintToString(t.setup));
  const Expected expected(t.problem());
  on_each_target([&] { expect_result(t, expected); });
}

void expect_correct(const BackwardCase& c) {
  BackwardTensors t(c);
  expect_correct(t);
}

bool same_bits(const BackwardTensors& a, const BackwardTensors& b) {
  const auto same = [](const HostTensor& x, const HostTensor& y) {
    return std::memcmp(x.storage().data(), y.storage().data(), x.storage().size()) == 0;
  };
  return same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv) && same(a.dsinks, b.dsinks);
}

TEST(CpuBackward, RandomProblemsMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 60; ++seed) {
    BackwardTensors t(random_backward_case(seed, dtypes[seed % 3], 200));
    t.poison_unseen_rows();
    expect_correct(t);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(CpuBackward, EveryHeadDim) {
  for (std::int64_t d = 8; d <= 256; d += 8) {
    BackwardCase c;
    c.forward.q_len = 37, c.forward.k_len = 150, c.forward.q_heads = 2, c.forward.head_dim = d;
    c.forward.mask = core::Mask::causal(), c.forward.dtype = dtypes[d / 8 % 3];
    expect_correct(c);
  }
}

TEST(CpuBackward, ManyBlocksAndTiles) {
  BackwardCase c;
  c.forward.dtype = TANDEM_FP32;
  c.forward.q_len = 500, c.forward.k_len = 700, c.forward.mask = {300, 20};
  expect_correct(c);
}

TEST(CpuBackward, TallTiles) {
  BackwardCase c;
  c.forward.batch = 16, c.forward.kv_heads = 8, c.forward.q_heads = 8;  // enough tasks for the tallest tile
  c.forward.q_len = 140, c.forward.k_len = 133, c.forward.head_dim = 8, c.forward.mask = core::Mask::causal();
  expect_correct(c);
}

TEST(CpuBackward, LargeScoresAndOneHotRows) {
  for (const tandem_dtype dtype : dtypes)
    for (const float softcap : {0.0f, 30.0f}) {
      BackwardCase c;
      c.forward.dtype = dtype;
      c.forward.q_len = 33, c.forward.k_len = 200, c.forward.scale = 4, c.forward.softcap = softcap;
      expect_correct(c);
    }
}

TEST(CpuBackward, LowLseDoesNotOverflow) {
  // All scores near -120: exp(0 - lse) of a padded key would be infinite.
  BackwardCase c;
  c.forward.q_len = 37, c.forward.k_len = 90, c.forward.scale = 1;
  BackwardTensors t(c);
  for (std::int64_t i = 0; i < c.forward.k_len; ++i) {
    if (i < c.forward.q_len) t.q.set(0, i, 0, 0, 12);
    t.k.set(0, i, 0, 0, -10);
  }
  t.run_forward();
  expect_correct(t);
}

TEST(CpuBackward, NothingToDoWritesNothing) {
  BackwardCase c;
  c.forward.batch = 0;
  BackwardTensors t(c);
  on_each_target([&] { run(t); });
  for (const HostTensor* output : {&t.dq, &t.dk, &t.dv}) EXPECT_TRUE(output->untouched());
}

TEST(CpuBackward, SinksOfRowsThatSeeNoKeyHaveTheGradientOfLse) {
  BackwardCase c;
  c.forward.q_len = 40, c.forward.k_len = 0, c.forward.q_heads = 2, c.forward.kv_heads = 2;
  c.dlse = c.sinks = true;
  BackwardTensors t(c);
  double sum[2] = {};
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t h = 0; h < 2; ++h) sum[h] += t.dlse.at(0, i, h, 0);
  on_each_target([&] {
    run(t);
    for (std::int64_t h = 0; h < 2; ++h) EXPECT_NEAR(t.dsinks.at(0, 0, 0, h), sum[h], 1e-5);
  });
}

TEST(CpuBackward, WithoutKeysOrQueriesGradientsAreZero) {
  for (std::int64_t ForwardCase::*length : {&ForwardCase::q_len, &ForwardCase::k_len}) {
    BackwardCase c;
    c.forward.q_len = c.forward.k_len = 40;
    c.forward.*length = 0;
    BackwardTensors t(c);
    on_each_target([&] {
      run(t);
      for (const HostTensor* output : {&t.dq, &t.dk, &t.dv})
        for (const double value : output->values()) ASSERT_EQ(value, 0);
    });
  }
}

TEST(CpuBackward, RowsWithLseMinusInfinityHaveNoPart) {
  BackwardCase c;
  c.forward.q_len = 70, c.forward.k_len = 90, c.dlse = true;
  BackwardTensors t(c);
  for (const std::int64_t i : {0, 13, 69}) {
    t.lse.set(0, i, 0, 0, -std::numeric_limits<float>::infinity());
    for (HostTensor* tensor : {&t.q, &t.o, &t.dout}) tensor->set(0, i, 0, 7, NAN);
    t.dlse.set(0, i, 0, 0, NAN);
  }
  BackwardTensors oracle(c);
  for (auto member : {&BackwardTensors::q, &BackwardTensors::o, &BackwardTensors::lse, &BackwardTensors::dout,
                      &BackwardTensors::dlse})
    std::memcpy((oracle.*member).storage().data(), (t.*member).storage().data(),
                (t.*member).storage().size());
  cpu::reference_backward(oracle.problem());
  on_each_target([&] {
    run(t);
    for (const auto member : {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv}) {
      const std::vector<double> values = (t.*member).values(), expected = (oracle.*member).values();
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], 1e-2);
    }
  });
}

TEST(CpuBackward, KeysWithoutAnyWeightCountAsUnseen) {
  BackwardCase c;
  c.forward.q_len = 3, c.forward.k_len = 300;
  BackwardTensors t(c);
  t.q.fill(1);
  t.k.fill(-std::numeric_limits<float>::infinity());
  t.run_forward();
  on_each_target([&] {
    run(t);
    for (const HostTensor* output : {&t.dq, &t.dk, &t.dv})
      for (const double value : output->values()) ASSERT_EQ(value, 0);
  });
}

TEST(CpuBackward, NanReachesWhatItHasPartInAndNothingElse) {
  for (const core::Mask& mask : {core::Mask::full(), core::Mask::causal(), core::Mask{10, 3}})
    for (HostTensor BackwardTensors::*tensor :
         {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::dout}) {
      BackwardCase c;
      c.forward.q_len = 70, c.forward.k_len = 100, c.forward.q_heads = 2, c.forward.mask = mask;
      BackwardTensors t(c);
      (t.*tensor).set(0, 43, 0, 7, NAN);
      t.run_forward();
      expect_correct(t);
    }
}

TEST(CpuBackward, LseFarBelowTheScoresGivesInfinityNotNoise) {
  BackwardCase c;
  c.forward.q_len = c.forward.k_len = 1, c.forward.dtype = TANDEM_FP32;
  BackwardTensors t(c);
  t.lse.fill(-1000);
  on_each_target([&] {
    run(t);
    for (const double value : t.dv.values()) EXPECT_TRUE(std::isinf(value)) << value;
  });
}

TEST(CpuBackward, SameBitsForEveryNumberOfThreads) {
  for (std::uint64_t seed = 900; seed < 912; ++seed) {
    BackwardTensors one(random_backward_case(seed, dtypes[seed % 3], 320)),
        several(random_backward_case(seed, dtypes[seed % 3], 320));
    SCOPED_TRACE(::testing::PrintToString(one.setup));
    cpu::set_thread_count(1);
    run(one);
    for (const int count : {2, 3, 8}) {
      cpu::set_thread_count(count);
      run(several);
      EXPECT_TRUE(same_bits(one, several)) << count << " threads";
    }
  }
  cpu::set_thread_count(0);
}

TEST(CpuBackward, WorkspaceGrowsWithTheQueriesAlone) {
  BackwardCase c;
  c.forward.q_heads = c.forward.kv_heads = 16, c.forward.head_dim = 256;
  core::BackwardProblem p = shapes_of(c);
  p.q.shape[1] = p.k.shape[1] = std::int64_t{1} << 14;
  const std::size_t bytes = cpu::backward_workspace(p);
  p.k.shape[1] = std::int64_t{1} << 40;
  EXPECT_EQ(cpu::backward_workspace(p), bytes);
  p.q.shape[1] *= 2;
  EXPECT_EQ(cpu::backward_workspace(p), bytes + 8 * 16 * (std::size_t{1} << 14));
}

// ---- What holds for every attention

/// A problem whose gradients the identities are asked of: no caps, so that dS is that of the scores.
BackwardCase identity_case(std::uint64_t seed) {
  BackwardCase c = random_backward_case(seed, dtypes[seed % 3], 200);
  c.forward.q = c.forward.k = c.forward.v = c.dout = {};
  c.forward.softcap = 0, c.sinks = false;  // a sink takes a share of what would add up
  c.forward.q_len = std::max<std::int64_t>(c.forward.q_len, 1);
  c.forward.k_len = std::max<std::int64_t>(c.forward.k_len, 1);
  return c;
}

double epsilon(tandem_dtype dtype) {
  return dtype == TANDEM_BF16 ? 8e-3 : dtype == TANDEM_FP16 ? 1e-3 : 1e-5;
}

TEST(CpuBackward, GradientsOfTheScoresSumToTheGradientOfLseOverTheKeys) {
  // One element is 1 in all keys: that of dq is scale * the sum of dS over the keys, which is dlse.
  for (std::uint64_t seed = 1; seed < 31; ++seed) {
    const BackwardCase c = identity_case(seed);
    SCOPED_TRACE(::testing::PrintToString(c));
    BackwardTensors t(c);
    for (std::int64_t b = 0; b < c.forward.batch; ++b)
      for (std::int64_t s = 0; s < c.forward.k_len; ++s)
        for (std::int64_t h = 0; h < c.forward.kv_heads; ++h) t.k.set(b, s, h, 3, 1);
    t.run_forward();
    run(t);
    const core::BackwardProblem p = t.problem();
    for (std::int64_t b = 0; b < p.batch(); ++b)
      for (std::int64_t i = 0; i < p.q_len(); ++i)
        for (std::int64_t h = 0; h < p.q_heads(); ++h) {
          const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
          const double dlse = c.dlse && keys.begin < keys.end ? t.dlse.at(b, i, h, 0) : 0;
          double size = 0;  // of what cancels
          for (std::int64_t e = 0; e < p.head_dim(); ++e)
            size += std::abs(t.dout.at(b, i, h, e) * t.o.at(b, i, h, e));
          ASSERT_NEAR(t.dq.at(b, i, h, 3), p.scale * dlse, epsilon(p.dtype()) * (1 + size)) << b << i << h;
        }
  }
}

TEST(CpuBackward, GradientsOfTheValuesSumToThoseOfTheOutputs) {
  for (std::uint64_t seed = 1; seed < 31; ++seed) {
    BackwardTensors t(identity_case(seed));
    SCOPED_TRACE(::testing::PrintToString(t.setup));
    run(t);
    const core::BackwardProblem p = t.problem();
    for (std::int64_t b = 0; b < p.batch(); ++b)
      for (std::int64_t kv_head = 0; kv_head < p.kv_heads(); ++kv_head)
        for (std::int64_t e = 0; e < p.head_dim(); ++e) {
          double values = 0, outputs = 0, size = 0;
          for (std::int64_t s = 0; s < p.k_len(); ++s) values += t.dv.at(b, s, kv_head, e);
          for (std::int64_t i = 0; i < p.q_len(); ++i) {
            const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
            for (std::int64_t h = 0; keys.begin < keys.end && h < p.group(); ++h) {
              outputs += t.dout.at(b, i, kv_head * p.group() + h, e);
              size += std::abs(t.dout.at(b, i, kv_head * p.group() + h, e));
            }
          }
          ASSERT_NEAR(values, outputs, epsilon(p.dtype()) * (1 + size));
        }
  }
}

TEST(CpuBackward, EqualKeysPullTheirQueryNowhere) {
  for (std::uint64_t seed = 1; seed < 16; ++seed) {
    BackwardCase c = identity_case(seed);
    c.dlse = false;
    SCOPED_TRACE(::testing::PrintToString(c));
    BackwardTensors t(c);
    t.k.fill(0.75f);
    t.run_forward();
    run(t);
    for (const double value : t.dq.values()) ASSERT_NEAR(value, 0, 60 * epsilon(c.forward.dtype));
  }
}

}  // namespace
}  // namespace tandem::test
