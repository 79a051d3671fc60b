// Trees of drafts: which of the last keys each query sees, bit by bit, in forward and decode.
#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tests/api/mistake.h"
#include "tests/api/plain_row.h"
#include "tests/api/request.h"

namespace tandem::test {
namespace {

class Tree : public ::testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, Tree, ::testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE));

/// Words of a chain: each query sees itself and all before.
std::vector<std::uint64_t> chain(std::int64_t batch, std::int64_t q_len) {
  std::vector<std::uint64_t> words;
  for (std::int64_t i = 0; i < batch * q_len; ++i) words.push_back(~std::uint64_t{0} >> (63 - i % q_len));
  return words;
}

TEST_P(Tree, OfRandomBitsHidesWhatTheyHideAndNothingBeforeThem) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < std::uint64_t{first} + 12; ++seed) {
    Random random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    ForwardCase c{.dtype = TANDEM_FP32, .lse = true, .seed = seed};
    c.q_len = seed % 3 == 0 ? 64 : 1 + below(64), c.k_len = 1 + below(300), c.batch = 2;
    c.kv_heads = 1 + below(2), c.q_heads = c.kv_heads * (1 + below(3)), c.head_dim = 8 * (1 + below(6));
    c.mask = seed % 2 == 0 ? core::Mask::full() : core::Mask::causal();
    std::vector<std::uint64_t> words;
    for (std::int64_t i = 0; i < 2 * c.q_len; ++i) words.push_back(below(6) == 0 ? 0 : random());
    Request request(c);
    request.args.backend = GetParam();
    request.args.tree = words.data();
    SCOPED_TRACE(::testing::Message() << c << " seed " << seed);
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = 0; i < c.q_len; ++i)
        for (std::int64_t h = 0; h < c.q_heads; ++h) {
          const std::uint64_t word = words[static_cast<std::size_t>(b * c.q_len + i)];
          const PlainRow plain = plain_row(request.tensors, b, i, h, 0, [&](std::int64_t key) {
            const std::int64_t draft = key - (c.k_len - c.q_len);
            if (!c.mask.is_full() && draft > i) return false;
            return draft < 0 || word == 0 || (word >> draft) % 2 == 1;
          });
          if (std::isinf(plain.lse)) {
            EXPECT_EQ(request.tensors.lse.at(b, i, h, 0), plain.lse);
            EXPECT_EQ(request.tensors.o.at(b, i, h, 0), 0);
            continue;
          }
          ASSERT_NEAR(request.tensors.lse.at(b, i, h, 0), plain.lse, 2e-5 * (1 + std::abs(plain.lse)));
          for (std::int64_t e = 0; e < c.head_dim; ++e)
            ASSERT_NEAR(request.tensors.o.at(b, i, h, e), plain.o[static_cast<std::size_t>(e)], 1e-4);
        }
  }
}

TEST_P(Tree, OfOneChainIsCausal) {
  ForwardCase c{.dtype = TANDEM_FP32, .batch = 2, .q_len = 40, .k_len = 90, .q_heads = 2, .kv_heads = 1};
  Request plain(c), tree(c);
  plain.mask = {sizeof(tandem_mask), TANDEM_MASK_CAUSAL, 0, 0, 0};
  const std::vector<std::uint64_t> words = chain(2, 40);
  tree.args.tree = words.data();
  for (Request* request : {&plain, &tree}) {
    request->args.backend = GetParam();
    ASSERT_EQ(request->run(), TANDEM_OK) << tandem_last_error();
  }
  EXPECT_THAT(tree.tensors.o.values(),
              ::testing::Pointwise(::testing::DoubleNear(1e-6), plain.tensors.o.values()));
}

TEST_P(Tree, OfMoreQueriesThanBitsIsNone) {
  ForwardCase c{.dtype = TANDEM_FP32, .q_len = 65, .k_len = 90};
  Request plain(c), tree(c);
  const std::vector<std::uint64_t> words(65, 1);
  tree.args.tree = words.data();
  for (Request* request : {&plain, &tree}) {
    request->args.backend = GetParam();
    ASSERT_EQ(request->run(), TANDEM_OK) << tandem_last_error();
  }
  EXPECT_EQ(tree.tensors.o.values(), plain.tensors.o.values());
}

// Keys of another branch may hold anything.
TEST_P(Tree, NothingOfAHiddenKeyReachesTheOutput) {
  ForwardCase c{.dtype = TANDEM_FP32, .q_len = 3, .k_len = 20};
  Request request(c);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t e = 0; e < c.head_dim; ++e)
    request.tensors.k.set(0, 18, 0, e, nan), request.tensors.v.set(0, 18, 0, e, nan);
  const std::uint64_t words[] = {0b001, 0b011, 0b101};  // two drafts behind one
  request.args.tree = words;
  request.args.backend = GetParam();
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_FALSE(std::isnan(request.tensors.o.at(0, 0, 0, 0)));
  EXPECT_TRUE(std::isnan(request.tensors.o.at(0, 1, 0, 0)));
  EXPECT_FALSE(std::isnan(request.tensors.o.at(0, 2, 0, 0)));
}

TEST_P(Tree, OfADecodingStepIsThatOfTheForward) {
  for (const bool eight_bit : {false, true}) {
    DecodeCase c{.dtype = TANDEM_FP32, .q_len = 5, .q_heads = 4, .kv_heads = 2, .head_dim = 32};
    c.lengths = {70, 33}, c.capacity = 70, c.mask = core::Mask::causal();
    c.eight_bit.on = eight_bit;
    const std::array<std::uint64_t, 10> words = {1, 3, 5, 11, 21, 1, 2, 0, 9, 27};
    DecodeRequest step(c);
    step.args.backend = GetParam(), step.args.tree = words.data();
    ASSERT_EQ(step.run(), TANDEM_OK) << tandem_last_error();
    for (std::int64_t b = 0; b < 2; ++b) {
      const SequenceValues own = step.tensors.sequence(b);
      ForwardCase f{.dtype = TANDEM_FP32, .q_len = 5, .k_len = own.keys, .q_heads = 4, .kv_heads = 2};
      f.head_dim = 32, f.mask = c.mask;
      Request whole(f);
      const auto fill = [](HostTensor& to, const std::vector<double>& from) {
        const auto& shape = to.view().shape;
        const double* value = from.data();
        for (std::int64_t s = 0; s < shape[1]; ++s)
          for (std::int64_t h = 0; h < shape[2]; ++h)
            for (std::int64_t e = 0; e < shape[3]; ++e) to.set(0, s, h, e, static_cast<float>(*value++));
      };
      fill(whole.tensors.q, own.q), fill(whole.tensors.k, own.k), fill(whole.tensors.v, own.v);
      whole.args.backend = GetParam(), whole.args.tree = words.data() + b * 5;
      ASSERT_EQ(whole.run(), TANDEM_OK) << tandem_last_error();
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t h = 0; h < 4; ++h)
          for (std::int64_t e = 0; e < 32; ++e)
            ASSERT_NEAR(step.tensors.o.at(b, i, h, e), whole.tensors.o.at(0, i, h, e), 1e-4) << b << i << h;
    }
  }
}

TEST(Tree, MistakesAreNamedAndLeaveOutputsUntouched) {
  static const std::uint64_t words[64] = {};
  expect_refused(Mistake<Request>{"Misaligned",
                                  [](Request& r) {
                                    r.args.tree = reinterpret_cast<const std::uint64_t*>(
                                        reinterpret_cast<const std::byte*>(words) + 4);
                                  },
                                  {"tree is 0x", "not aligned", "8 bytes"}});
  expect_refused(
      Mistake<Request>{"Memory",
                       [](Request& r) { r.args.tree = static_cast<const std::uint64_t*>(r.args.o.data); },
                       {"o.data is 0x", "overlap those of tree"}});
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3;
  expect_refused(Mistake<Request>{"EightBit",
                                  [](Request& r) { r.args.tree = words; },
                                  {"tree is given", "8-bit inputs are no trees"},
                                  TANDEM_UNSUPPORTED},
                 Request(c));
}

}  // namespace
}  // namespace tandem::test
