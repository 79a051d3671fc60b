// The oracle against values computed by hand and against what holds for every attention.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "cpu/forward.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"

namespace tandem::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

ForwardCase small_case() {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.batch = 2, c.q_len = 5, c.k_len = 7, c.q_heads = 4, c.kv_heads = 2, c.head_dim = 16;
  return c;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinities
    ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
  }
}

TEST(Reference, TwoKeysByHand) {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.k_len = 2, c.head_dim = 8, c.scale = 0.5f;
  ForwardTensors t(c);
  for (HostTensor* tensor : {&t.q, &t.k, &t.v}) tensor->fill(0);
  t.q.set(0, 0, 0, 0, 2);
  t.k.set(0, 0, 0, 0, 1);  // scores 0.5 * 2 * 1 = 1 and 0.5 * 2 * 3 = 3
  t.k.set(0, 1, 0, 0, 3);
  t.v.set(0, 0, 0, 5, 10);
  t.v.set(0, 1, 0, 5, 20);
  const cpu::ReferenceValues values = cpu::reference_values(t.problem());
  const double late = 1 / (1 + std::exp(-2.0));
  EXPECT_NEAR(values.o[5], 10 * (1 - late) + 20 * late, 1e-13);
  EXPECT_EQ(values.o[4], 0);
  EXPECT_NEAR(values.lse[0], std::log(std::exp(1.0) + std::exp(3.0)), 1e-13);

  c.softcap = 2;
  core::ForwardProblem capped = t.problem();
  capped.softcap = 2;
  EXPECT_NEAR(cpu::reference_values(capped).lse[0],
              std::log(std::exp(2 * std::tanh(0.5)) + std::exp(2 * std::tanh(1.5))), 1e-13);
}

TEST(Reference, CausalByHand) {
  ForwardCase c;
  c.dtype = TANDEM_FP32;
  c.q_len = 3, c.k_len = 2, c.head_dim = 8, c.mask = core::Mask::causal();
  ForwardTensors t(c);
  t.q.fill(0);  // equal weights for all keys that are seen
  t.v.fill(1);
  t.v.set(0, 1, 0, 0, 3);
  const cpu::ReferenceValues values = cpu::reference_values(t.problem());
  EXPECT_EQ(values.lse[0], -infinity);  // the first query stands before the first key
  EXPECT_EQ(values.o[0], 0);
  EXPECT_EQ(values.lse[1], 0);
  EXPECT_EQ(values.o[8], 1);
  EXPECT_NEAR(values.lse[2], std::log(2.0), 1e-15);
  EXPECT_EQ(values.o[16], 2);
}

TEST(Reference, OneKeyReturnsItsValue) {
  ForwardCase c = small_case();
  c.k_len = 1;
  const ForwardTensors t(c);
  const cpu::ReferenceValues values = cpu::reference_values(t.problem());
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t i = 0; i < c.q_len; ++i)
      for (std::int64_t h = 0; h < c.q_heads; ++h)
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          const auto at = static_cast<std::size_t>(((b * c.q_len + i) * c.q_heads + h) * c.head_dim + e);
          ASSERT_EQ(values.o[at], t.v.at(b, 0, h / 2, e));
        }
}

TEST(Reference, ConstantValuesComeBack) {
  ForwardTensors t(small_case());
  t.v.fill(1.25f);
  for (const double o : cpu::reference_values(t.problem()).o) ASSERT_NEAR(o, 1.25, 1e-14);
}

TEST(Reference, OrderOfKeysDoesNotMatter) {
  const ForwardCase c = small_case();
  ForwardTensors t(c), rotated(c);
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.k_len; ++s)
      for (std::int64_t h = 0; h < c.kv_heads; ++h)
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          rotated.k.set(b, s, h, e, static_cast<float>(t.k.at(b, c.k_len - 1 - s, h, e)));
          rotated.v.set(b, s, h, e, static_cast<float>(t.v.at(b, c.k_len - 1 - s, h, e)));
        }
  const cpu::ReferenceValues a = cpu::reference_values(t.problem()),
                             b = cpu::reference_values(rotated.problem());
  expect_near(a.o, b.o, 1e-14);
  expect_near(a.lse, b.lse, 1e-14);
}

TEST(Reference, LargeSoftcapIsNone) {
  ForwardTensors t(small_case());
  core::ForwardProblem p = t.problem();
  const cpu::ReferenceValues plain = cpu::reference_values(p);
  p.softcap = 1e6f;
  const cpu::ReferenceValues capped = cpu::reference_values(p);
  expect_near(plain.o, capped.o, 1e-9);
  expect_near(plain.lse, capped.lse, 1e-9);
}

TEST(Reference, SmallSoftcapMakesTheMean) {
  ForwardTensors t(small_case());
  core::ForwardProblem p = t.problem();
  p.softcap = 1e-9f;  // all scores vanish
  for (const double lse : cpu::reference_values(p).lse) ASSERT_NEAR(lse, std::log(7.0), 1e-8);
}

TEST(Reference, ShiftedScoresShiftTheLse) {
  // One more element of the head dim, 1 in q and c in k, adds scale * c to every score.
  ForwardTensors t(small_case());
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 7; ++i)
      for (std::int64_t h = 0; h < 4; ++h) {
        if (i < 5) t.q.set(b, i, h, 15, 1);
        if (h < 2) t.k.set(b, i, h, 15, 0);
      }
  const cpu::ReferenceValues before = cpu::reference_values(t.problem());
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 7; ++i)
      for (std::int64_t h = 0; h < 2; ++h) t.k.set(b, i, h, 15, 800);
  const cpu::ReferenceValues after = cpu::reference_values(t.problem());
  expect_near(before.o, after.o, 1e-12);
  for (std::size_t i = 0; i < before.lse.size(); ++i) ASSERT_NEAR(after.lse[i] - before.lse[i], 200, 1e-10);
}

TEST(Reference, HiddenKeysAreNotRead) {
  ForwardCase c = small_case();
  c.mask = core::Mask::causal();  // query 0 sees keys 0, 1, 2
  ForwardTensors t(c);
  const cpu::ReferenceValues clean = cpu::reference_values(t.problem());
  for (HostTensor* tensor : {&t.k, &t.v}) {
    for (std::int64_t e = 0; e < c.head_dim; ++e) tensor->set(0, 4, 0, e, NAN);
  }
  const cpu::ReferenceValues poisoned = cpu::reference_values(t.problem());
  const auto rows = static_cast<std::size_t>(c.q_heads * c.head_dim);
  for (std::size_t i = 0; i < 2 * rows; ++i) ASSERT_EQ(poisoned.o[i], clean.o[i]);  // queries 0 and 1
  EXPECT_TRUE(std::isnan(poisoned.o[2 * rows]));                                    // query 2 sees key 4
  EXPECT_TRUE(std::isnan(poisoned.lse[2 * 4]));
}

TEST(Reference, KeysWithoutAnyWeightCountAsUnseen) {
  ForwardTensors t(small_case());
  t.q.fill(1);
  t.k.fill(-std::numeric_limits<float>::infinity());
  const cpu::ReferenceValues values = cpu::reference_values(t.problem());
  for (const double lse : values.lse) ASSERT_EQ(lse, -infinity);
  for (const double o : values.o) ASSERT_EQ(o, 0);
}

TEST(Reference, WritesTheValuesRoundedAndNothingElse) {
  Random random(5);
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    ForwardCase c = small_case();
    c.dtype = dtype;
    c.o = random_layout(random);
    c.lse_layout = random_layout(random);
    SCOPED_TRACE(::testing::PrintToString(c));
    ForwardTensors t(c);
    cpu::reference_forward(t.problem());
    const cpu::ReferenceValues exact = cpu::reference_values(t.problem());
    expect_near(t.o.values(), exact.o, dtype == TANDEM_BF16 ? 4e-3 * 2 : 1e-3);
    expect_near(t.lse.values(), exact.lse, 1e-6);
    EXPECT_TRUE(t.o.guards_intact());
    EXPECT_TRUE(t.lse.guards_intact());
  }
}

TEST(Reference, OfWidenedCopiesIsTheSameToTheBit) {
  Random random(7);
  for (int i = 0; i < 40; ++i) {
    ForwardCase c = small_case();
    c.seed = random(), c.k_len = static_cast<std::int64_t>(random() % 40);
    c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
    c.k = random_input_layout(random);
    if (i % 2 == 0) draw_eight_bit(c, random);
    SCOPED_TRACE(::testing::PrintToString(c));
    const ForwardTensors t(c);
    const cpu::ReferenceValues widened = oracle_values(t.problem()),
                               plain = cpu::reference_values(t.problem());
    EXPECT_EQ(widened.o, plain.o);
    EXPECT_EQ(widened.lse, plain.lse);
  }
}

}  // namespace
}  // namespace tandem::test
