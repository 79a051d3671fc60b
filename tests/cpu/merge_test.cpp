// Merging on the CPU: the oracle against attention over all keys, the fast backend against the oracle.
#include "cpu/merge.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/forward_case.h"
#include "tests/support/merge_case.h"

namespace tandem::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::uint64_t first_seed() {  // another one: --gtest_random_seed
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
}

ForwardValues oracle(const core::MergeProblem& problem) {
  cpu::ReferenceValues values = cpu::reference_merge_values(problem);
  return {std::move(values.o), std::move(values.lse)};
}

TEST(ReferenceMerge, OfAttentionOverPartsOfTheKeysIsAttentionOverAll) {
  ForwardCase c{
      .dtype = TANDEM_FP32, .batch = 2, .q_len = 5, .k_len = 48, .q_heads = 3, .kv_heads = 3, .head_dim = 16};
  const ForwardTensors whole(c);
  const core::ForwardProblem all = whole.problem();
  MergeTensors merge({.parts = 3, .batch = 2, .length = 5, .heads = 3, .head_dim = 16});
  const core::Tensor o = merge.o_parts.view(), lse = merge.lse_parts.view();
  for (std::int64_t part = 0; part < 3; ++part) {
    core::ForwardProblem own = all;
    own.k.shape[1] = own.v.shape[1] = 16;
    own.k.data = core::row_of<float>(all.k, 0, 16 * part, 0);
    own.v.data = core::row_of<float>(all.v, 0, 16 * part, 0);
    own.o = o, own.lse = lse;
    own.o.shape[0] = own.lse.shape[0] = 2;
    own.o.data = core::row_of<float>(o, 2 * part, 0, 0);
    own.lse.data = core::row_of<float>(lse, 2 * part, 0, 0);
    cpu::reference_forward(own);
  }
  const ForwardValues merged = oracle(merge.problem());
  const cpu::ReferenceValues expected = cpu::reference_values(all);
  for (std::size_t i = 0; i < expected.o.size(); ++i) EXPECT_NEAR(merged.o[i], expected.o[i], 1e-6) << i;
  for (std::size_t i = 0; i < expected.lse.size(); ++i)
    EXPECT_NEAR(merged.lse[i], expected.lse[i], 1e-6) << i;
}

TEST(Merge, RandomPartsMatchTheOracle) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 200; ++seed) {
    MergeCase c = random_merge_case(seed);
    Random random(~seed);
    for (Layout* layout : {&c.o_parts, &c.lse_parts}) *layout = random_input_layout(random);
    for (Layout* layout : {&c.o_parts, &c.lse_parts}) layout->broadcast = {};  // each row has its own values
    for (Layout* layout : {&c.o, &c.lse_layout}) *layout = random_layout(random);
    MergeTensors t(c);
    cpu::merge(t.problem());
    ASSERT_EQ(merge_failure(t, oracle(t.problem())), "") << c;
    MergeTensors exact(c);
    cpu::reference_merge(exact.problem());
    ASSERT_EQ(merge_failure(exact, oracle(exact.problem())), "") << c;
  }
}

/// Both backends.
template <typename Check>
void on_both(MergeTensors& t, const Check& check) {
  for (const auto merge : {cpu::merge, cpu::reference_merge}) {
    t.o.poison(), t.lse.poison();
    merge(t.problem());
    check();
  }
}

TEST(Merge, WithoutAnyKeyIsZeroAndMinusInfinity) {
  for (const std::int64_t parts : {0, 1, 3}) {
    MergeTensors t({.parts = parts, .length = 4, .heads = 2, .head_dim = 8});
    t.o_parts.poison();
    t.lse_parts.fill(-infinity);
    on_both(t, [&] {
      for (const double x : t.o.values()) EXPECT_EQ(x, 0);
      for (const double x : t.lse.values()) EXPECT_EQ(x, -infinity);
    });
  }
}

TEST(Merge, OfOnePartIsThatPart) {
  MergeTensors t({.parts = 1, .length = 3, .heads = 2, .head_dim = 24});
  t.o_parts.fill_normal(3);
  t.lse_parts.fill_normal(4, 30);
  on_both(t, [&] {
    EXPECT_EQ(t.o.values(), t.o_parts.values());
    EXPECT_EQ(t.lse.values(), t.lse_parts.values());
  });
}

TEST(Merge, AnUndefinedLogarithmIsNotHidden) {
  MergeTensors t({.parts = 2, .length = 1, .heads = 1, .head_dim = 8});
  t.o_parts.fill_normal(3);
  for (const float other : {-infinity, 1.f}) {
    t.lse_parts.set(0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN());
    t.lse_parts.set(1, 0, 0, 0, other);
    on_both(t, [&] {
      for (const double x : t.o.values()) EXPECT_TRUE(std::isnan(x));
      EXPECT_TRUE(std::isnan(t.lse.values()[0]));
    });
  }
}

TEST(Merge, WeightsFarApartNeitherOverflowNorVanish) {
  MergeTensors t({.parts = 2, .length = 2, .heads = 1, .head_dim = 8});
  t.o_parts.fill_normal(3);
  const float logarithms[2][2] = {{3e4f, 3e4f}, {-3e4f, 3e4f}};
  for (int row = 0; row < 2; ++row)
    for (int part = 0; part < 2; ++part) t.lse_parts.set(part, row, 0, 0, logarithms[row][part]);
  on_both(t, [&] {
    for (int i = 0; i < 8; ++i) {
      EXPECT_NEAR(t.o.at(0, 0, 0, i), (t.o_parts.at(0, 0, 0, i) + t.o_parts.at(1, 0, 0, i)) / 2, 1e-6);
      EXPECT_EQ(t.o.at(0, 1, 0, i), t.o_parts.at(1, 1, 0, i));
    }
    EXPECT_NEAR(t.lse.at(0, 0, 0, 0), 3e4 + std::log(2.0), 2e-3);
    EXPECT_EQ(t.lse.at(0, 1, 0, 0), 3e4);
  });
}

}  // namespace
}  // namespace tandem::test
