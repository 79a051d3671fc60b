// Scores that fall with distance (ALiBi), by their definition, in forward and decode.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "tests/api/mistake.h"
#include "tests/api/plain_row.h"
#include "tests/api/request.h"

namespace tandem::test {
namespace {

class Slopes : public ::testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, Slopes, ::testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE));

TEST_P(Slopes, TakeTheirShareOfEveryKeysDistanceOffItsScore) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < std::uint64_t{first} + 12; ++seed) {
    Random random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    ForwardCase c{.dtype = TANDEM_FP32, .lse = true, .seed = seed};
    c.q_len = 1 + below(40), c.k_len = 1 + below(300), c.batch = 2, c.kv_heads = 1 + below(2);
    c.q_heads = c.kv_heads * (1 + below(3)), c.head_dim = 8 * (1 + below(6));
    c.softcap = seed % 3 == 0 ? 5.f : 0.f;
    if (below(2) == 0) c.value_dim = 8 * (1 + below(6));
    const std::int64_t left = below(100), right = below(3);
    c.mask = seed % 2 == 0 ? core::Mask::full() : core::Mask{{left, right}};
    Request request(c);
    const bool by_sequence = seed % 4 < 2;
    std::vector<float> slopes;
    for (std::int64_t i = 0; i < 2 * c.q_heads + 1; ++i)
      slopes.push_back(i % 4 == 3 ? -0.01f : std::exp2(-static_cast<float>(below(9))));
    request.args.backend = GetParam();
    request.args.alibi_slopes = slopes.data();
    request.args.alibi_stride = by_sequence ? c.q_heads + 1 : 0;
    SCOPED_TRACE(::testing::Message() << c << " seed " << seed << (by_sequence ? " by sequence" : ""));
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = 0; i < c.q_len; ++i)
        for (std::int64_t h = 0; h < c.q_heads; ++h) {
          const double slope = slopes[static_cast<std::size_t>((by_sequence ? b * (c.q_heads + 1) : 0) + h)];
          const std::int64_t position = i + c.k_len - c.q_len;
          const PlainRow plain = plain_row(request.tensors, b, i, h, slope, [&](std::int64_t key) {
            return c.mask.is_full() || (key >= position - left && key <= position + right);
          });
          if (std::isinf(plain.lse)) {
            EXPECT_EQ(request.tensors.lse.at(b, i, h, 0), plain.lse);
            continue;
          }
          ASSERT_NEAR(request.tensors.lse.at(b, i, h, 0), plain.lse, 2e-5 * (1 + std::abs(plain.lse)));
          for (std::int64_t e = 0; e < c.value_columns(); ++e)
            ASSERT_NEAR(request.tensors.o.at(b, i, h, e), plain.o[static_cast<std::size_t>(e)], 1e-4);
        }
  }
}

TEST_P(Slopes, OfADecodingStepAreThoseOfTheForward) {
  for (const bool eight_bit : {false, true}) {
    DecodeCase c{.dtype = TANDEM_FP32, .q_len = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
    c.lengths = {70, 70}, c.capacity = 70, c.mask = core::Mask::causal(), c.softcap = 9.f;
    c.eight_bit.on = eight_bit;
    const float slopes[] = {0.5f, 0.1f, 0.f, -0.02f, 0.7f, 0.3f, 0.01f, 0.2f};
    DecodeRequest step(c);
    step.args.backend = GetParam();
    step.args.alibi_slopes = slopes, step.args.alibi_stride = 4;
    ASSERT_EQ(step.run(), TANDEM_OK) << tandem_last_error();
    ForwardCase f{.dtype = TANDEM_FP32, .batch = 2, .q_len = 3, .k_len = 70, .q_heads = 4, .kv_heads = 2};
    f.head_dim = 32, f.mask = c.mask, f.softcap = c.softcap, f.lse = true;
    Request whole(f);
    for (std::int64_t b = 0; b < 2; ++b) {
      const SequenceValues own = step.tensors.sequence(b);
      const auto fill = [b](HostTensor& to, const std::vector<double>& from) {
        const auto& shape = to.view().shape;
        const double* value = from.data();
        for (std::int64_t s = 0; s < shape[1]; ++s)
          for (std::int64_t h = 0; h < shape[2]; ++h)
            for (std::int64_t e = 0; e < shape[3]; ++e) to.set(b, s, h, e, static_cast<float>(*value++));
      };
      fill(whole.tensors.q, own.q), fill(whole.tensors.k, own.k), fill(whole.tensors.v, own.v);
    }
    whole.args.backend = GetParam();
    whole.args.alibi_slopes = slopes, whole.args.alibi_stride = 4;
    ASSERT_EQ(whole.run(), TANDEM_OK) << tandem_last_error();
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t h = 0; h < 4; ++h) {
          ASSERT_NEAR(step.tensors.lse.at(b, i, h, 0), whole.tensors.lse.at(b, i, h, 0), 1e-4);
          for (std::int64_t e = 0; e < 32; ++e)
            ASSERT_NEAR(step.tensors.o.at(b, i, h, e), whole.tensors.o.at(b, i, h, e), 1e-4);
        }
  }
}

TEST(Slopes, MistakesAreNamedAndLeaveOutputsUntouched) {
  static const float slopes[8] = {};
  const auto given = [](auto& r, std::int64_t stride) {
    r.args.alibi_slopes = slopes, r.args.alibi_stride = stride;
  };
  expect_refused(
      Mistake<Request>{"Stride", [&](Request& r) { given(r, -4); }, {"alibi_stride is -4", "0 or more"}});
  expect_refused(Mistake<Request>{"Scale",
                                  [&](Request& r) { given(r, 0), r.args.scale = 1e-33f; },
                                  {"scale is 1e-33", "at least 1e-30"}});
  expect_refused(
      Mistake<Request>{"Cap",
                       [&](Request& r) { given(r, 0), r.args.scale = 1e-3f, r.args.softcap = 1e-33f; },
                       {"softcap is 1e-33", "at least 1e-30"}});
  expect_refused(Mistake<Request>{"Memory",
                                  [&](Request& r) {
                                    given(r, 0);
                                    r.args.alibi_slopes = static_cast<const float*>(r.args.o.data);
                                  },
                                  {"o.data is 0x", "overlap those of alibi_slopes"}});
  expect_refused(Mistake<DecodeRequest>{
      "StrideOfAStep", [&](DecodeRequest& r) { given(r, -1); }, {"alibi_stride is -1"}});
}

TEST(Slopes, AStrideIsNotReadWithoutThem) {
  Request request;
  request.args.alibi_stride = -1;
  EXPECT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
}

TEST(Slopes, EightBitInputsHaveNone) {
  static const float slopes[8] = {};
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3;
  expect_refused(Mistake<Request>{"EightBit",
                                  [](Request& r) { r.args.alibi_slopes = slopes; },
                                  {"alibi_slopes are given", "8-bit inputs have no slopes"},
                                  TANDEM_UNSUPPORTED},
                 Request(c));
}

}  // namespace
}  // namespace tandem::test
