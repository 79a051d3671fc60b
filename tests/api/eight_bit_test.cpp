// tandem_forward of 8-bit inputs: both CPU backends against the oracle, and every mistake with its words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/api/mistake.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

/// Small, with every dimension different and all scales.
ForwardCase small_eight_bit_case(bool v_transposed = false) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3;
  c.eight_bit = {.output = TANDEM_BF16,
                 .v_transposed = v_transposed,
                 .q = {true, 2, 4},
                 .k = {true, 2, 2},
                 .v = {false, 0, 1}};
  return c;
}

// The CPU backend does not round probabilities to 8 bits, so it is as close to the oracle as with fp32.
TEST(EightBitForward, FasterBackendAgreesWithTheReferenceForAnyScalesAndLayout) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const auto up_to = [&](std::int64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
  for (int i = 0; i < 60; ++i) {
    ForwardCase c{.batch = up_to(3), .q_len = up_to(40), .k_len = up_to(300)};
    c.kv_heads = up_to(3);
    c.q_heads = c.kv_heads * up_to(3);
    c.head_dim = 8 * up_to(32);
    c.mask = random_mask(random, c.q_len, c.k_len);
    c.softcap = random() % 3 == 0 ? 5.f : 0.f;
    draw_eight_bit(c, random);
    if (random() % 4 == 0) c.dtype = TANDEM_INT8;  // what no kernel takes: by key, or two terms beside e4m3
    if (random() % 4 == 0 && c.eight_bit.v_transposed) c.dtype = TANDEM_E4M3, c.eight_bit.v_terms = 2;
    if (c.dtype == TANDEM_INT8)  // else scores are so large that fp32 shows
      for (ScaleCase* scales : {&c.eight_bit.q, &c.eight_bit.k})
        scales->heads = std::max<std::int64_t>(1, scales->heads);
    c.eight_bit.output = TANDEM_FP32;
    c.q = random_input_layout(random), c.o = random_layout(random);
    c.seed = random();
    std::ostringstream description;
    description << c;
    SCOPED_TRACE(description.str());

    Request fast(c), reference(c, TANDEM_BACKEND_REFERENCE);
    ASSERT_EQ(fast.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(reference.run(), TANDEM_OK) << tandem_last_error();
    const auto o = fast.tensors.o.values(), expected = reference.tensors.o.values();
    for (std::size_t j = 0; j < o.size(); ++j) ASSERT_NEAR(o[j], expected[j], 1e-4);
    const auto lse = fast.tensors.lse.values(), expected_lse = reference.tensors.lse.values();
    for (std::size_t j = 0; j < lse.size(); ++j) {
      if (std::isinf(expected_lse[j])) {
        ASSERT_EQ(lse[j], expected_lse[j]);
      } else {
        ASSERT_NEAR(lse[j], expected_lse[j], 1e-4);
      }
    }
    EXPECT_TRUE(fast.tensors.o.guards_intact() && fast.tensors.lse.guards_intact());
  }
}

// Their copies in fp32 would have 2^64 bytes, which is 0 in 64 bits.
TEST(EightBitForward, NoWorkspaceHasRoomForMoreKeysThanThereAreAddresses) {
  Request request(small_eight_bit_case());
  request.scales.k_block = request.scales.v_block = 0;
  request.scales.k.data = request.scales.v.data = nullptr;
  for (tandem_tensor* tensor : {&request.args.k, &request.args.v}) {
    tensor->shape[1] = std::int64_t{1} << 55;  // one row, over and over
    tensor->stride[1] = 0;
  }
  std::size_t bytes = 0;
  ASSERT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(bytes, SIZE_MAX);
  EXPECT_EQ(request.run(), TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(request.outputs_untouched());
}

// A scale says what an element stands for: half of it with values twice as large is the same problem.
TEST(EightBitForward, ScalesMultiplyWhatElementsStandFor) {
  for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
    ForwardCase c = small_eight_bit_case();
    c.eight_bit.output = TANDEM_FP32;
    Request whole(c, backend), half(c, backend);
    for (HostTensor* scales : {&half.tensors.q_scale, &half.tensors.k_scale, &half.tensors.v_scale}) {
      const core::Tensor view = scales->view();
      for (std::int64_t b = 0; b < view.shape[0]; ++b)
        for (std::int64_t block = 0; block < view.shape[1]; ++block)
          for (std::int64_t h = 0; h < view.shape[2]; ++h)
            scales->set(b, block, h, 0, static_cast<float>(scales->at(b, block, h, 0)) / 2);
    }
    half.args.scale = 4.f / std::sqrt(static_cast<float>(c.head_dim));
    ASSERT_EQ(whole.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(half.run(), TANDEM_OK) << tandem_last_error();
    const auto expected = whole.tensors.o.values(), o = half.tensors.o.values();
    for (std::size_t j = 0; j < o.size(); ++j) EXPECT_EQ(2 * o[j], expected[j]);
  }
}

// A value of two terms is their sum: where the second is the first, it is one term with twice the scale.
TEST(EightBitForward, TermsOfAValueAreAddedBeforeTheyAreScaled) {
  for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
    ForwardCase c = small_eight_bit_case(true);
    c.dtype = TANDEM_INT8;
    c.eight_bit.output = TANDEM_FP32;
    ForwardCase twice = c;
    twice.eight_bit.v_terms = 2;
    Request one(c, backend), two(twice, backend);
    const core::Tensor v = one.tensors.v.view();
    for (std::int64_t b = 0; b < v.shape[0]; ++b)
      for (std::int64_t e = 0; e < v.shape[1]; ++e)
        for (std::int64_t h = 0; h < v.shape[2]; ++h)
          for (std::int64_t p = 0; p < v.shape[3]; ++p)
            for (const std::int64_t term : {0, 1})
              two.tensors.v.set(b, term * c.head_dim + e, h, p,
                                static_cast<float>(one.tensors.v.at(b, e, h, p)));
    ASSERT_EQ(one.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(two.run(), TANDEM_OK) << tandem_last_error();
    const auto expected = one.tensors.o.values(), o = two.tensors.o.values();
    for (std::size_t j = 0; j < o.size(); ++j) EXPECT_EQ(o[j], 2 * expected[j]);
    EXPECT_EQ(one.tensors.lse.values(), two.tensors.lse.values());
  }
}

TEST(EightBitForward, KeysBeyondTheLastOfATransposedRowAreNotRead) {
  Request request(small_eight_bit_case(true)), poisoned(small_eight_bit_case(true));
  const core::Tensor v = poisoned.tensors.v.view();
  for (std::int64_t p = 0; p < v.shape[3]; ++p) {
    if (core::key_of_position(p) < poisoned.tensors.setup.k_len) continue;
    for (std::int64_t e = 0; e < v.shape[1]; ++e)
      poisoned.tensors.v.set(0, e, 0, p, std::numeric_limits<float>::quiet_NaN());
  }
  ASSERT_EQ(request.run(), TANDEM_OK);
  ASSERT_EQ(poisoned.run(), TANDEM_OK);
  EXPECT_EQ(request.tensors.o.values(), poisoned.tensors.o.values());
}

TEST(KeyOrder, IsAPermutationOfEach16AndItsInverse) {
  const std::vector<std::int64_t> order = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (std::int64_t p = 0; p < 64; ++p) {
    EXPECT_EQ(core::key_of_position(p), p / 16 * 16 + order[static_cast<std::size_t>(p % 16)]);
    EXPECT_EQ(core::position_of_key(core::key_of_position(p)), p);
  }
}

struct EightBitMistake : Mistake<Request> {
  bool v_transposed = false;
};

class EightBitMistakes : public ::testing::TestWithParam<EightBitMistake> {};

TEST_P(EightBitMistakes, AreNamedAndLeaveTheOutputsAlone) {
  ForwardCase c = small_eight_bit_case(GetParam().v_transposed);
  c.eight_bit.v_shift = c.eight_bit.q_dot_k_shift = true;
  expect_refused(GetParam(), Request(c));
}

const std::vector<EightBitMistake> mistakes = {
    {"ScalesWithoutTheirSize", [](Request& r) { r.scales.struct_size = 0; }, {"scales->struct_size is 0"}},
    {"LayoutOfValues",
     [](Request& r) { store(r.scales.v_layout, 7); },
     {"scales.v_layout is 7", "BY_COLUMN"}},
    {"KeysOfAnotherType", [](Request& r) { r.args.k.dtype = TANDEM_BF16; }, {"k.dtype is 1 (bf16)", "e4m3"}},
    {"KeysOfIntegersBesideQueriesOfE4m3",
     [](Request& r) { r.args.k.dtype = TANDEM_INT8; },
     {"k.dtype is 5 (int8)", "e4m3"}},
    {"IntegersAsValues",
     [](Request& r) { r.args.q.dtype = r.args.k.dtype = r.args.v.dtype = TANDEM_INT8; },
     {"v.dtype is 5 (int8), but q.dtype is 5 (int8)", "TANDEM_E4M3"}},
    {"NegativeAmplitude",
     [](Request& r) { r.scales.qk_amplitude = -1; },
     {"scales.qk_amplitude is -1", "0 to 448"}},
    {"AmplitudeBeyondTheFormat",
     [](Request& r) { r.scales.qk_amplitude = 449; },
     {"scales.qk_amplitude is 449", "0 to 448"}},
    {"AmplitudeThatIsNoNumber",
     [](Request& r) { r.scales.qk_amplitude = std::numeric_limits<float>::quiet_NaN(); },
     {"scales.qk_amplitude is ", "0 to 448"}},
    {"TokensOfShift",
     [](Request& r) { r.scales.v_shift.shape[1] = 5; },
     {"scales.v_shift.shape[1] (tokens) is 5", "has to be 1"}},
    {"HeadsOfShift",
     [](Request& r) { r.scales.v_shift.shape[2] = 4; },
     {"scales.v_shift.shape[2] (heads) is 4", "1 or k.shape[2], which is 2"}},
    {"ShiftOfBf16",
     [](Request& r) { r.scales.v_shift.dtype = TANDEM_BF16; },
     {"scales.v_shift.dtype is 1", "TANDEM_FP32"}},
    {"ShiftThatIsTheOutput",
     [](Request& r) { r.scales.v_shift.data = r.args.o.data; },
     {"scales.v_shift", "overlap"}},
    {"ProductsOfAnotherLength",
     [](Request& r) { r.scales.q_dot_k_shift.shape[1] = 1; },
     {"scales.q_dot_k_shift.shape[1]", "q.shape[1]"}},
    {"ProductsOfBf16",
     [](Request& r) { r.scales.q_dot_k_shift.dtype = TANDEM_BF16; },
     {"scales.q_dot_k_shift.dtype is 1", "TANDEM_FP32"}},
    {"KeysShiftWithASoftcap",
     [](Request& r) { r.args.softcap = 5; },
     {"scales.q_dot_k_shift is given, but softcap is 5", "pass 0"}},
    {"ThreeTerms", [](Request& r) { r.scales.v_terms = 3; }, {"scales.v_terms is 3", "1 or 2"}},
    {"TwoTermsByKey", [](Request& r) { r.scales.v_terms = 2; }, {"scales.v_terms is 2", "BY_COLUMN"}},
    {"TwoTermsOfOne",
     [](Request& r) { r.scales.v_terms = 2; },
     {"v.shape[1] is 16", "for each term, which is 32"},
     TANDEM_INVALID_ARGUMENT,
     true},
    {"TreeOfIntegers",
     [](Request& r) {
       static const std::uint64_t words[6] = {};
       r.args.q.dtype = TANDEM_INT8, r.args.tree = words;
     },
     {"tree is given, but q.dtype is 5 (int8)", "pass NULL"},
     TANDEM_UNSUPPORTED},
    {"OutputOf8Bits",
     [](Request& r) { r.args.o.dtype = TANDEM_E4M3; },
     {"o.dtype is 4 (e4m3)", "TANDEM_BF16"}},
    {"ScalesOfBf16",
     [](Request& r) { r.scales.k.dtype = TANDEM_BF16; },
     {"scales.k.dtype is 1", "TANDEM_FP32"}},
    {"NegativeBlock", [](Request& r) { r.scales.v_block = -1; }, {"scales.v_block is -1"}},
    {"BatchOfScales",
     [](Request& r) { r.scales.q.shape[0] = 3; },
     {"scales.q.shape[0] (batch) is 3", "is 2"}},
    {"BlocksOfScales",
     [](Request& r) { r.scales.k.shape[1] = 2; },
     {"scales.k.shape[1] (blocks) is 2", "be 3"}},
    {"BlocksWithoutABlock",
     [](Request& r) { r.scales.k_block = 0; },
     {"scales.k.shape[1] (blocks) is 3", "be 1"}},
    {"HeadsOfScales",
     [](Request& r) { r.scales.q.shape[2] = 3; },
     {"scales.q.shape[2] (heads) is 3", "4 or 2"}},
    {"ColumnsOfScales", [](Request& r) { r.scales.k.shape[3] = 2; }, {"scales.k.shape[3] is 2"}},
    {"ScalesThatAreTheOutput", [](Request& r) { r.scales.v.data = r.args.o.data; }, {"scales.v", "overlap"}},
    {"ValuesByKeyCalledByColumn",
     [](Request& r) { r.scales.v_layout = TANDEM_VALUES_BY_COLUMN; },
     {"v.shape[1] is 5", "which is 16"}},
    {"ValuesByColumnWithoutTheirTail",
     [](Request& r) { r.args.v.shape[3] = 8; },
     {"v.shape[3] is 8", "multiple of 16: 16"},
     TANDEM_INVALID_ARGUMENT,
     true},
    {"ValuesByColumnOfManyKeys",
     [](Request& r) {
       r.args.k.shape[1] = (std::int64_t{1} << 56) - 1;
       r.scales.k.data = r.scales.v.data = nullptr;
     },
     {"v.shape[3] is 16", "multiple of 16: 72057594037927936"},
     TANDEM_INVALID_ARGUMENT,
     true},
    {"ScalesOfFp32",
     [](Request& r) { store(r.args.q.dtype, TANDEM_FP32), store(r.args.k.dtype, TANDEM_FP32); },
     {"scales is given", "q.dtype is 3 (fp32)"}},
};
INSTANTIATE_TEST_SUITE_P(All, EightBitMistakes, ::testing::ValuesIn(mistakes), by_name);

TEST(EightBitForward, DecodeRefusesIt) {
  DecodeRequest request;
  request.args.q.dtype = TANDEM_E4M3;
  EXPECT_EQ(request.run(), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("e4m3"));
}

}  // namespace
}  // namespace tandem::test
