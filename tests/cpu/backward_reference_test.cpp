// The oracle of the backward pass against central differences of the forward's oracle, and against what holds
// for every attention.
#include <algorithm>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <tuple>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "tests/support/backward_case.h"

namespace tandem::test {
namespace {

BackwardCase small_case() {
  BackwardCase c;
  c.forward.dtype = TANDEM_FP32;
  c.forward.q_len = 3, c.forward.k_len = 4, c.forward.head_dim = 8;
  return c;
}

void for_each_element(const core::Tensor& shape,
                      const std::function<void(std::array<std::int64_t, 4>)>& visit) {
  for (std::int64_t b = 0; b < shape.shape[0]; ++b)
    for (std::int64_t s = 0; s < shape.shape[1]; ++s)
      for (std::int64_t h = 0; h < shape.shape[2]; ++h)
        for (std::int64_t e = 0; e < shape.shape[3]; ++e) visit({b, s, h, e});
}

/// The loss whose gradients are dout and dlse: sum(dout o) + sum(dlse lse), rows without keys left out.
double loss(const BackwardTensors& t) {
  const cpu::ReferenceValues values = cpu::reference_values(core::forward_of(t.problem()));
  const std::vector<double> dout = t.dout.values(), dlse = t.dlse.values();
  double sum = 0;
  for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * values.o[i];
  for (std::size_t i = 0; t.setup.dlse && i < dlse.size(); ++i)
    if (std::isfinite(values.lse[i])) sum += dlse[i] * values.lse[i];
  return sum;
}

/// Multiples of 2^-12 below 8: fp32 holds them and their steps exactly.
void round_to_grid(HostTensor& tensor) {
  for_each_element(tensor.view(), [&](std::array<std::int64_t, 4> at) {
    const double value = tensor.at(at[0], at[1], at[2], at[3]);
    tensor.set(at[0], at[1], at[2], at[3], static_cast<float>(std::round(value * 4096) / 4096));
  });
}

/// The loss' derivative by one element of `tensor`, by central differences of fourth order.
double difference(BackwardTensors& t, HostTensor& tensor, std::array<std::int64_t, 4> at) {
  constexpr double h = 1.0 / 256;
  const double value = tensor.at(at[0], at[1], at[2], at[3]);
  const auto loss_at = [&](double offset) {
    tensor.set(at[0], at[1], at[2], at[3], static_cast<float>(value + offset));
    return loss(t);
  };
  const double slope = 8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h));
  tensor.set(at[0], at[1], at[2], at[3], static_cast<float>(value));
  return slope / (12 * h);
}

void expect_differences(BackwardTensors& t, HostTensor& tensor, const std::vector<double>& gradient,
                        const char* name) {
  std::size_t i = 0;
  for_each_element(tensor.view(), [&](std::array<std::int64_t, 4> at) {
    const double expected = difference(t, tensor, at);
    ASSERT_NEAR(gradient[i], expected, 1e-7 * (1 + std::abs(expected))) << name << " element " << i;
    ++i;
  });
}

void expect_central_differences(const BackwardCase& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  BackwardTensors t(c);
  for (HostTensor* tensor : {&t.q, &t.k, &t.v, &t.sinks}) round_to_grid(*tensor);
  const cpu::ReferenceGradients gradients = cpu::reference_gradients(t.problem());
  expect_differences(t, t.q, gradients.dq, "dq");
  expect_differences(t, t.k, gradients.dk, "dk");
  expect_differences(t, t.v, gradients.dv, "dv");
  if (c.sinks) expect_differences(t, t.sinks, gradients.dsinks, "dsinks");
}

TEST(BackwardReference, AgreesWithCentralDifferences) {
  const core::Mask masks[] = {
      core::Mask::full(), core::Mask::causal(), {1, 0}, {0, 1}, {core::Mask::unlimited, 1}};
  for (const core::Mask& mask : masks)
    for (const float softcap : {0.0f, 1.5f})
      for (const std::int64_t group : {1, 2})
        for (const bool dlse : {false, true})
          for (const bool sinks : {false, true}) {
            BackwardCase c = small_case();
            c.forward.mask = mask, c.forward.softcap = softcap, c.forward.q_heads = group;
            c.dlse = dlse, c.sinks = sinks;
            expect_central_differences(c);
          }
}

TEST(BackwardReference, AgreesWithCentralDifferencesWhereRowsSeeNoKey) {
  BackwardCase c = small_case();
  c.forward.mask = core::Mask::causal(), c.forward.q_len = 5, c.forward.k_len = 3, c.dlse = true;
  c.forward.batch = 2, c.forward.kv_heads = 2, c.forward.q_heads = 2;
  for (const bool sinks : {false, true}) {
    c.sinks = sinks;
    expect_central_differences(c);
  }
}

TEST(BackwardReference, TwoKeysByHand) {
  BackwardCase c = small_case();
  c.forward.q_len = 1, c.forward.k_len = 2, c.forward.scale = 0.5f;
  BackwardTensors t(c);
  for (HostTensor* tensor : {&t.q, &t.k, &t.v, &t.dout}) tensor->fill(0);
  t.q.set(0, 0, 0, 0, 2);  // scores 1 and 3
  t.k.set(0, 0, 0, 0, 1);
  t.k.set(0, 1, 0, 0, 3);
  t.v.set(0, 0, 0, 5, 10);
  t.v.set(0, 1, 0, 5, 20);
  t.dout.set(0, 0, 0, 5, 4);
  const cpu::ReferenceGradients g = cpu::reference_gradients(t.problem());
  const double late = 1 / (1 + std::exp(-2.0)), ds = late * (1 - late) * 4 * (20 - 10);
  EXPECT_NEAR(g.dv[5], 4 * (1 - late), 1e-14);
  EXPECT_NEAR(g.dv[8 + 5], 4 * late, 1e-14);
  EXPECT_NEAR(g.dq[0], 0.5 * ds * (3 - 1), 1e-13);
  EXPECT_NEAR(g.dk[0], 0.5 * -ds * 2, 1e-13);
  EXPECT_NEAR(g.dk[8], 0.5 * ds * 2, 1e-13);
  EXPECT_EQ(g.dk[5], 0);
}

TEST(BackwardReference, ReadsTheForwardsResultsAsTheyAreGiven) {
  // Half of the keys with o and lse of all: the halves' dq add up, their dk and dv lie side by side.
  BackwardCase whole = small_case(), half = small_case();
  whole.forward.k_len = 8;
  BackwardTensors all(whole), first(half), last(half);
  const auto rows = [&](HostTensor& to, const HostTensor& from, std::int64_t begin) {
    for_each_element(to.view(), [&](std::array<std::int64_t, 4> at) {
      to.set(at[0], at[1], at[2], at[3], static_cast<float>(from.at(at[0], at[1] + begin, at[2], at[3])));
    });
  };
  for (auto* part : {&first, &last}) {
    for (const auto member :
         {&BackwardTensors::q, &BackwardTensors::o, &BackwardTensors::lse, &BackwardTensors::dout})
      rows(part->*member, all.*member, 0);
    for (const auto member : {&BackwardTensors::k, &BackwardTensors::v})
      rows(part->*member, all.*member, part == &first ? 0 : 4);
  }
  for (auto* t : {&all, &first, &last}) cpu::reference_backward(t->problem());
  for_each_element(all.dq.view(), [&](std::array<std::int64_t, 4> at) {
    const auto [b, s, h, e] = at;
    ASSERT_NEAR(all.dq.at(b, s, h, e), first.dq.at(b, s, h, e) + last.dq.at(b, s, h, e), 1e-6);
  });
  for_each_element(first.dk.view(), [&](std::array<std::int64_t, 4> at) {
    const auto [b, s, h, e] = at;
    ASSERT_EQ(all.dk.at(b, s, h, e), first.dk.at(b, s, h, e));
    ASSERT_EQ(all.dk.at(b, s + 4, h, e), last.dk.at(b, s, h, e));
    ASSERT_EQ(all.dv.at(b, s + 4, h, e), last.dv.at(b, s, h, e));
  });
}

TEST(BackwardReference, RowsAndKeysThatNobodySeesAreZeroAndUnread) {
  for (const auto& [mask, q_len, k_len] :
       {std::tuple{core::Mask::causal(), 6, 4}, {core::Mask{0, 0}, 3, 7}}) {
    BackwardCase c = small_case();
    c.forward.mask = mask, c.forward.q_len = q_len, c.forward.k_len = k_len, c.dlse = true;
    BackwardTensors t(c);
    const cpu::ReferenceGradients clean = cpu::reference_gradients(t.problem());
    t.poison_unseen_rows();
    const cpu::ReferenceGradients g = cpu::reference_gradients(t.problem());
    EXPECT_EQ(g.dq, clean.dq);
    EXPECT_EQ(g.dk, clean.dk);
    EXPECT_EQ(g.dv, clean.dv);
    const auto zeros = [](const std::vector<double>& row) { return std::count(row.begin(), row.end(), 0.0); };
    const std::int64_t unseen = c.forward.head_dim * std::abs(q_len - k_len);
    EXPECT_EQ(zeros(g.dq), q_len > k_len ? unseen : 0);
    EXPECT_EQ(zeros(g.dv), k_len > q_len ? unseen : 0);
  }
}

TEST(BackwardReference, RowsWithLseMinusInfinityHaveNoPart) {
  BackwardTensors t(small_case());
  t.lse.set(0, 1, 0, 0, -std::numeric_limits<float>::infinity());
  for (HostTensor* tensor : {&t.q, &t.o, &t.dout}) tensor->set(0, 1, 0, 3, NAN);
  cpu::reference_backward(t.problem());
  for (std::int64_t e = 0; e < 8; ++e) EXPECT_EQ(t.dq.at(0, 1, 0, e), 0);
  for (const HostTensor* tensor : {&t.dq, &t.dk, &t.dv})
    for (const double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
}

TEST(BackwardReference, WritesTheValuesRoundedAndNothingElse) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32})
    for (std::uint64_t seed = 1; seed < 9; ++seed) {
      BackwardTensors t(random_backward_case(seed, dtype, 40));
      SCOPED_TRACE(::testing::PrintToString(t.setup));
      const cpu::ReferenceGradients exact = cpu::reference_gradients(t.problem());
      cpu::reference_backward(t.problem());
      const auto expect_near = [&](const HostTensor& tensor, const std::vector<double>& expected) {
        const std::vector<double> values = tensor.values();
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(values[i], expected[i],
                      (dtype == TANDEM_FP32 ? 1e-5 : 2e-2) * (1 + std::abs(expected[i])));
        EXPECT_TRUE(tensor.guards_intact());
      };
      expect_near(t.dq, exact.dq);
      expect_near(t.dk, exact.dk);
      expect_near(t.dv, exact.dv);
      EXPECT_EQ(t.dsinks_failure(), "");
    }
}

}  // namespace
}  // namespace tandem::test
