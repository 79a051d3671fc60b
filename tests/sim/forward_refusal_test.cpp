// What the forward's kernels refuse, at its limit and one beyond; which properties of a problem tell kernels
// apart; scales of 8 bits; and keys in parts.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "api/hopper_route.h"
#include "forward/plan.h"
#include "forward/split.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using core::ForwardProblem;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
T* at(std::uintptr_t number) {
  return reinterpret_cast<T*>(number << 32);
}

std::string message_of(const ForwardProblem& problem) {
  return std::string(forward::supported(problem).message());
}

ForwardCase small_case() {
  ForwardCase c;
  c.batch = 2, c.q_len = 3, c.k_len = 5, c.q_heads = 4, c.kv_heads = 2;
  return c;
}

/// Its strides are those of one dense tensor after the other.
ForwardProblem problem_of(const ForwardCase& c) {
  ForwardProblem p = shapes_of(c);
  for (core::Tensor* t : {&p.q, &p.k, &p.v, &p.o}) {
    t->stride[3] = 1, t->stride[2] = t->shape[3];
    t->stride[1] = t->shape[2] * t->stride[2], t->stride[0] = t->shape[1] * t->stride[1];
  }
  return p;
}

TEST(ForwardRefusal, TilesAreFewerThan2To30) {
  ForwardProblem p = problem_of(small_case());
  const auto with = [&p](std::int64_t batch, std::int64_t heads) {
    for (core::Tensor* t : {&p.q, &p.k, &p.v, &p.o}) t->shape[0] = batch, t->shape[2] = heads;
    return message_of(p);
  };
  EXPECT_EQ(with((1 << 28) - 1, 4), "") << "2^30 - 4 tiles";
  EXPECT_THAT(with(1 << 28, 4), HasSubstr("exceeds 2^30 tiles; split the batch"));
  EXPECT_EQ(with((1 << 25) - 1, 32), "");
  EXPECT_EQ(with(1 << 25, 31), "");
  EXPECT_THAT(with(1 << 25, 32), HasSubstr("ceil(sq / 64)"));
}

TEST(ForwardRefusal, SequencesHaveUpTo2To28QueriesAndKeys) {
  ForwardProblem p = problem_of(small_case());
  p.varlen.given = true, p.varlen.sequences = 2, p.varlen.max_seqlen_q = 3, p.varlen.max_seqlen_k = 5;
  p.k.shape[1] = p.v.shape[1] = 64, p.varlen.page_table = at<const std::int32_t>(1);
  const auto with = [&p](std::int64_t slots) {
    p.varlen.pages_per_sequence = slots;
    return std::string(api::forward_supported(p).message());
  };
  EXPECT_EQ(with(1 << 22), "");
  EXPECT_EQ(with((1 << 22) + 1),
            "varlen.pages_per_sequence * k.shape[1] (page size) is 268435520; the Hopper "
            "backend takes at most 2^28 keys of a sequence");
  EXPECT_THAT(with(std::int64_t{1} << 40), HasSubstr("is 70368744177664;"));
  p.varlen.page_table = nullptr, p.k.shape[1] = (1 << 28) + 1;
  EXPECT_THAT(with(0), HasSubstr("k.shape[1] (sequence length) is 268435457;"));
  p.q.shape[1] = (1 << 28) + 1;
  EXPECT_THAT(with(0), HasSubstr("q.shape[1] (sequence length) is 268435457; the Hopper backend takes"));
}

TEST(ForwardRefusal, WhatIsNotBuiltIsNamed) {
  ForwardCase c = small_case();
  c.head_dim = 520;
  EXPECT_EQ(
      message_of(problem_of(c)),
      "no Hopper kernel is built for dtype bf16 with head dim 520, overlap TANDEM_OVERLAP_AUTO and turn "
      "TANDEM_TURN_AUTO; built are bf16 and fp16 with head dims up to 256, up to 512 of fixed lengths and "
      "bands alone, and overlaps and turns other than the default ones up to 256 without a softcap");
  c.head_dim = 512;
  EXPECT_EQ(message_of(problem_of(c)), "");
  static constexpr float sinks[8] = {};
  ForwardProblem with_sinks = problem_of(c);
  with_sinks.sinks = sinks;
  EXPECT_THAT(message_of(forward::for_kernels(with_sinks)),
              HasSubstr("with head dim 512, overlap TANDEM_OVERLAP_AUTO and"));
  c.overlap = TANDEM_OVERLAP_TWO_STAGE;
  EXPECT_THAT(message_of(problem_of(c)), HasSubstr("with head dim 512, overlap TANDEM_OVERLAP_TWO_STAGE"));
  c.head_dim = 520;
  c.softcap = 3, c.overlap = TANDEM_OVERLAP_TWO_STAGE, c.turn = TANDEM_TURN_FREE;
  EXPECT_THAT(message_of(problem_of(c)),
              HasSubstr(", a softcap, overlap TANDEM_OVERLAP_TWO_STAGE and turn TANDEM_TURN_FREE;"));
  c.overlap = TANDEM_OVERLAP_SERIAL;
  EXPECT_THAT(message_of(problem_of(c)), HasSubstr("overlap TANDEM_OVERLAP_SERIAL and"));
  c = small_case(), c.head_dim = 192, c.mask.chunk = 100;
  EXPECT_EQ(message_of(forward::for_kernels(problem_of(c))), "");
  c.head_dim = 200;
  EXPECT_THAT(message_of(forward::for_kernels(problem_of(c))),
              HasSubstr("with head dim 200, chunks, overlap"));
}

TEST(ForwardRefusal, PagesAreOfPowersOfTwoFrom16On) {
  for (std::int64_t size = 1; size <= 300; ++size) {
    ForwardProblem p = problem_of(small_case());
    p.varlen.given = true, p.varlen.sequences = 2, p.varlen.max_seqlen_q = 3, p.varlen.max_seqlen_k = 5;
    p.k.shape[0] = p.v.shape[0] = 64, p.k.shape[1] = p.v.shape[1] = size;
    EXPECT_EQ(message_of(p), "") << "entries";
    p.varlen.page_table = at<const std::int32_t>(1);
    const bool taken = size >= 16 && (size & (size - 1)) == 0;
    EXPECT_EQ(message_of(p), taken ? ""
                                   : "k.shape[1] (page size) is " + std::to_string(size) +
                                         "; the Hopper backend takes powers of two from 16 on");
  }
}

/// A problem of two sequences that appends and rotates.
ForwardProblem appending() {
  ForwardProblem p = problem_of(small_case());
  p.varlen.given = true, p.varlen.sequences = 2, p.varlen.max_seqlen_q = 3, p.varlen.max_seqlen_k = 5;
  p.varlen.k_new = p.varlen.v_new = {at<void>(1), TANDEM_BF16, {2, 3, 2, 64}, {384, 128, 64, 1}};
  p.varlen.rotary = {at<void>(2), at<void>(3), TANDEM_FP32, 64, 8, true};
  return p;
}

TEST(ForwardRefusal, WhatIsAppendedHasRowsOf16BytesAndTablesThatAreAligned) {
  EXPECT_EQ(message_of(appending()), "");
  for (const auto& [name, tensor] :
       {std::pair{"varlen.k_new", &core::Varlen::k_new}, {"varlen.v_new", &core::Varlen::v_new}}) {
    ForwardProblem p = appending();
    (p.varlen.*tensor).stride[1] += 1;
    EXPECT_THAT(message_of(p), HasSubstr(std::string(name) + ".stride[1] is 129;"));
    p.varlen.k_new.data = nullptr;
    EXPECT_EQ(message_of(p), "") << "nothing is appended";
  }
  for (std::uintptr_t address = 4096; address <= 4112; ++address)
    for (const bool of_cos : {false, true}) {
      ForwardProblem p = appending();
      (of_cos ? p.varlen.rotary.cos : p.varlen.rotary.sin) = reinterpret_cast<const void*>(address);
      const std::string name = of_cos ? "varlen.rotary.cos" : "varlen.rotary.sin";
      EXPECT_EQ(message_of(p).rfind(name + " is not aligned: its address modulo 16 is ", 0) == 0,
                address % 16 > 0);
    }
}

TEST(ForwardRefusal, WhatIsAppendedAndRotatedIsAtMost2To30Pieces) {
  constexpr std::int64_t most = (std::int64_t{1} << 30) - 1;
  static_assert(most % 9 == 0);
  ForwardProblem p = appending();
  p.varlen.rotary.cos = p.varlen.rotary.sin = nullptr;
  const auto appended = [&p](std::int64_t entries, std::int64_t tokens) {
    for (core::Tensor* t : {&p.varlen.k_new, &p.varlen.v_new}) t->shape[0] = entries, t->shape[1] = tokens;
    return message_of(p);
  };
  EXPECT_EQ(appended(1 << 15, 1 << 14), "");
  EXPECT_EQ(appended(9, most / 9), "") << "2^30 - 1 warps";
  EXPECT_THAT(appended(4, 1 << 28), HasSubstr("too many elements to rotate and append in one call"));
  EXPECT_EQ(appended(1, 1), "");
  p.varlen.rotary = appending().varlen.rotary;
  p.q.shape[0] = p.o.shape[0] = 9, p.q.shape[1] = p.o.shape[1] = most / 9 - 1;
  EXPECT_EQ(message_of(p), "");
  EXPECT_EQ(appended(9, 1), "") << "together 2^30 - 1";
  EXPECT_THAT(appended(10, 1), HasSubstr("split the batch"));
  p.varlen.rotary.cos = p.varlen.rotary.sin = nullptr;
  EXPECT_EQ(appended(10, 1), "") << "queries stay";
}

/// Each changes one thing that may decide which kernel serves.
const std::vector<void (*)(ForwardProblem&)> changes = {
    [](ForwardProblem& p) { p.q.shape[0] += 1; },
    [](ForwardProblem& p) { p.q.shape[1] += 1; },
    [](ForwardProblem& p) { p.k.shape[1] += 1; },
    [](ForwardProblem& p) { p.q.shape[2] += 2; },
    [](ForwardProblem& p) { p.k.shape[2] -= 1; },
    [](ForwardProblem& p) { p.q.shape[3] += 8; },
    [](ForwardProblem& p) { p.mask.left = 7; },
    [](ForwardProblem& p) { p.mask.right = 7; },
    [](ForwardProblem& p) { p.mask.chunk = 7; },
    [](ForwardProblem& p) { p.q.dtype = TANDEM_FP16; },
    [](ForwardProblem& p) { p.o.dtype = TANDEM_FP16; },
    [](ForwardProblem& p) { p.overlap = TANDEM_OVERLAP_SERIAL; },
    [](ForwardProblem& p) { p.turn = TANDEM_TURN_FREE; },
    [](ForwardProblem& p) { p.block_m = 64; },
    [](ForwardProblem& p) { p.block_n = 64; },
    [](ForwardProblem& p) { p.softcap = 3; },
    [](ForwardProblem& p) {
      p.varlen.given = true, p.varlen.sequences = p.q.shape[0];
      p.varlen.max_seqlen_q = p.q.shape[1], p.varlen.max_seqlen_k = p.k.shape[1];
    },
    [](ForwardProblem& p) { p.varlen.split_keys = 128; },
    [](ForwardProblem& p) { p.slopes.data = at<const float>(1); },
    [](ForwardProblem& p) { p.tree = at<const std::uint64_t>(1); },
    [](ForwardProblem& p) { p.q.dtype = TANDEM_E4M3; },
    [](ForwardProblem& p) { p.q.dtype = TANDEM_E4M3, p.quantisation.v_transposed = true; },
    [](ForwardProblem& p) {
      p.q.dtype = TANDEM_E4M3, p.quantisation.v_transposed = true, p.quantisation.amplitude = 8;
    },
    [](ForwardProblem& p) { p.q.dtype = TANDEM_INT8, p.quantisation.v_transposed = true; },
    [](ForwardProblem& p) {
      p.q.dtype = TANDEM_INT8, p.quantisation.v_transposed = true, p.quantisation.v_terms = 2;
    }};

TEST(ShapeOfProblem, TellsApartWhatKernelsMayDependOn) {
  const ForwardProblem base = shapes_of(small_case());
  std::vector<forward::ShapeOfProblem> shapes = {forward::ShapeOfProblem(base)};
  for (const auto change : changes) {
    ForwardProblem p = base;
    change(p);
    shapes.emplace_back(p);
  }
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (std::size_t j = 0; j < shapes.size(); ++j) {
      EXPECT_EQ(shapes[i] == shapes[j], i == j) << i << " and " << j;
      EXPECT_EQ(shapes[i].hash() == shapes[j].hash(), i == j) << i << " and " << j;
    }
  ForwardProblem p = base;
  p.scale = 9, p.lse.data = at<void>(1), p.softcap = 0;
  EXPECT_TRUE(forward::ShapeOfProblem(p) == shapes[0]) << "these decide nothing";
  p.softcap = 3;
  ForwardProblem other = p;
  other.softcap = 4;
  EXPECT_TRUE(forward::ShapeOfProblem(p) == forward::ShapeOfProblem(other));
}

TEST(EightBitPlan, KernelsAreOfTheOutputsDtypeAndOfTheValuesLayout) {
  for (const tandem_dtype output : {TANDEM_BF16, TANDEM_FP16})
    for (const bool transposed : {false, true})
      for (const std::int64_t head_dim : {64, 128, 256}) {
        ForwardCase c = small_case();
        c.dtype = TANDEM_E4M3, c.head_dim = head_dim;
        c.eight_bit.output = output, c.eight_bit.v_transposed = transposed;
        const ForwardProblem p = shapes_of(c);
        const forward::ForwardVariant* v = forward::choose_variant(p);
        ASSERT_NE(v, nullptr) << c;
        EXPECT_EQ(v->operand, hw::Operand::e4m3);
        EXPECT_EQ(v->output, output == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16);
        EXPECT_EQ(v->values,
                  transposed ? forward::ValueLayout::columns : forward::ValueLayout::rows_transposed);
        EXPECT_EQ(v->head_dim, head_dim);
        const int rows = forward::map_boxes(p, *v).values.rows;
        EXPECT_EQ(rows, transposed ? head_dim : v->block_n) << "columns of all keys, or rows of keys";
      }
}

TEST(EightBitPlan, KernelsAreOfTheScoresTypeAndOfTheTermsOfValues) {
  for (const int terms : {1, 2})
    for (const std::int64_t head_dim : {64, 128, 256}) {
      ForwardCase c = small_case();
      c.dtype = TANDEM_INT8, c.head_dim = head_dim;
      c.eight_bit.v_transposed = true, c.eight_bit.v_terms = terms;
      const forward::ForwardVariant* v = forward::choose_variant(shapes_of(c));
      ASSERT_NE(v, nullptr) << c;
      EXPECT_EQ(v->operand, hw::Operand::int8);
      EXPECT_EQ(v->value_terms, terms);
      EXPECT_EQ(v->head_dim, head_dim);
    }
}

// Never where a score might leave fp16, nor where there is no such kernel.
TEST(EightBitPlan, ScoresAreInFp16WhereTheirAmplitudeAllowsIt) {
  test::Random random(5);
  for (int i = 0; i < 2000; ++i) {
    ForwardCase c = small_case();
    c.dtype = random() % 4 == 0 ? TANDEM_INT8 : TANDEM_E4M3;
    c.head_dim = 16 * static_cast<std::int64_t>(1 + random() % 16);
    c.softcap = random() % 4 == 0 ? 5.f : 0.f;
    c.mask = test::random_mask(random, c.q_len, c.k_len);
    c.eight_bit.v_transposed = c.dtype == TANDEM_INT8 || random() % 2 == 0;
    c.eight_bit.amplitude = static_cast<float>(random() % 40);
    const forward::ForwardVariant* v = forward::choose_variant(shapes_of(c));
    ASSERT_NE(v, nullptr) << c;
    const float most = static_cast<float>(c.head_dim) * c.eight_bit.amplitude * c.eight_bit.amplitude;
    const bool wanted = c.dtype == TANDEM_E4M3 && c.eight_bit.v_transposed && c.softcap == 0 &&
                        c.head_dim <= 128 && most > 0 && most <= 65504;
    EXPECT_EQ(v->fp16_scores, wanted) << c;
  }
}

// As measured: tiles of 192 rows have more of what is masked.
TEST(EightBitPlan, TilesOfScoresInFp16AreNarrowerWhereCausalSequencesAreShort) {
  for (auto [tokens, causal, rows] : {std::tuple{16384, true, 192},
                                      {2048, true, 192},
                                      {1024, true, 128},
                                      {512, true, 128},
                                      {16384, false, 192},
                                      {512, false, 192}}) {
    ForwardCase c = small_case();
    c.dtype = TANDEM_E4M3, c.eight_bit.v_transposed = true, c.eight_bit.amplitude = 30;
    c.batch = 16384 / tokens, c.q_len = c.k_len = tokens, c.q_heads = c.kv_heads = 32, c.head_dim = 64;
    c.mask = causal ? core::Mask::causal() : core::Mask::full();
    const forward::ForwardVariant* v = forward::choose_variant(shapes_of(c));
    ASSERT_NE(v, nullptr) << c;
    EXPECT_EQ(v->block_m, rows) << c;
  }
}

TEST(EightBitPlan, NamesWhichIntegersAndTermsNoKernelTakes) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_INT8, c.eight_bit.v_transposed = false;
  EXPECT_THAT(
      message_of(shapes_of(c)),
      HasSubstr("TANDEM_VALUES_BY_KEY, but q and k are int8; the Hopper backend takes values by column"));
  c.dtype = TANDEM_E4M3, c.eight_bit.v_transposed = true, c.eight_bit.v_terms = 2;
  EXPECT_THAT(message_of(shapes_of(c)), HasSubstr("scales.v_terms is 2, but q and k are e4m3"));
}

TEST(EightBitPlan, ScalesAreOfTheirTokensAndHeads) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3, c.q_heads = 8, c.kv_heads = 4, c.k_len = 3000, c.q_len = 500;
  ForwardProblem p = shapes_of(c);
  const auto scales = [](std::uintptr_t number, std::int64_t blocks, std::int64_t heads, std::int64_t block) {
    return core::Scales{{at<void>(number), TANDEM_FP32, {2, blocks, heads, 1}, {777, 55, 3, 1}}, block};
  };
  p.quantisation.q = scales(1, 1, 2, 500), p.quantisation.k = scales(2, 12, 4, 256);
  p.quantisation.v = scales(3, 1, 1, std::int64_t{1} << 40);
  const auto args = forward::make_arguments(p, *forward::choose_variant(p), 132);
  const auto expect_view = [](const forward::ScaleView& view, std::uintptr_t number,
                              std::int64_t block_stride, int block, int heads) {
    EXPECT_EQ(view.data, at<const float>(number));
    EXPECT_EQ(view.batch_stride, 777);
    EXPECT_EQ(view.block_stride, block_stride);
    EXPECT_EQ(view.head_stride, 3);
    EXPECT_EQ(view.block.value(), block);
    EXPECT_EQ(view.heads.value(), heads);
  };
  expect_view(args.q_scale, 1, 0, 1, 4);
  expect_view(args.k_scale, 2, 55, 256, 1);
  expect_view(args.v_scale, 3, 0, 1, 4);
  p.quantisation.k = scales(2, 2, 4, std::int64_t{1} << 40);
  expect_view(forward::make_arguments(p, *forward::choose_variant(p), 132).k_scale, 2, 55, 1 << 28, 1);
}

TEST(EightBitPlan, BlocksOfScalesAreMultiplesOf128Tokens) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3, c.k_len = 3000;
  for (const auto scales : {&core::Quantisation::k, &core::Quantisation::v})
    for (std::int64_t block = 1; block <= 512; ++block) {
      ForwardProblem p = problem_of(c);
      (p.quantisation.*scales).values.data = at<void>(1), (p.quantisation.*scales).block = block;
      std::ranges::copy(std::vector<std::int64_t>{1, 2, 1, 1}, (p.quantisation.*scales).values.shape);
      EXPECT_EQ(message_of(p).empty(), block % 128 == 0) << block;
      (p.quantisation.*scales).values.shape[1] = 1;
      EXPECT_EQ(message_of(p), "");
    }
}

TEST(EightBitPlan, ShiftsAreAddedUpToHeadDim128) {
  for (const std::int64_t head_dim : {64, 128, 192, 256})
    for (const bool lse : {false, true}) {
      ForwardCase c = small_case();
      c.dtype = TANDEM_E4M3, c.head_dim = head_dim;
      ForwardProblem keys = problem_of(c), values = keys;
      keys.lse.data = lse ? at<void>(1) : nullptr;
      keys.quantisation.q_dot_k_shift.data = values.quantisation.v_shift.values.data = at<void>(2);
      const std::string is_given = " is given, but the head dim is " + std::to_string(head_dim);
      const auto expect = [](const std::string& message, bool refused, const std::string& words) {
        EXPECT_EQ(message.empty(), !refused) << message;
        EXPECT_THAT(message, HasSubstr(refused ? words : ""));
      };
      expect(message_of(keys), lse && head_dim > 128, "scales.q_dot_k_shift" + is_given);
      expect(message_of(values), head_dim > 128, "scales.v_shift" + is_given);
    }
}

ForwardCase drawn_parts(std::uint64_t seed) {
  Random random(seed);
  const auto draw = [&random](std::uint64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
  ForwardCase c;
  c.batch = draw(3), c.q_len = draw(300), c.kv_heads = draw(3), c.q_heads = c.kv_heads * draw(3);
  c.head_dim = 8 * draw(32), c.k_len = 256 + draw(40000);
  if (random() % 2 == 0) c.mask = core::Mask::causal();
  return c;
}

TEST(PartsPlan, PartsCoverTheKeysAndLieOneBehindTheOther) {
  const auto rounded = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const ForwardCase c = drawn_parts(seed);
    SCOPED_TRACE(testing::Message() << c);
    ForwardProblem p = problem_of(c);
    p.lse = {at<void>(1), TANDEM_FP32, {c.batch, c.q_len, c.q_heads, 1}, {5, 6, 7, 1}};
    const int splits = 2 + static_cast<int>(seed % 9);
    auto* workspace = at<char>(2);
    const forward::SplitForward both = forward::split(p, splits, workspace);
    const core::Varlen& varlen = both.parts.varlen;
    EXPECT_TRUE(varlen.given);
    EXPECT_EQ(varlen.sequences, splits * c.batch);
    EXPECT_EQ(varlen.parts_batch, c.batch);
    EXPECT_EQ(varlen.max_seqlen_q, c.q_len);
    EXPECT_EQ(varlen.max_seqlen_k, c.k_len);
    EXPECT_EQ(varlen.split_keys % 128, 0);
    EXPECT_GE(varlen.split_keys * splits, c.k_len);
    EXPECT_LT((varlen.split_keys - 128) * splits, c.k_len) << "no more than need be";
    const std::int64_t rows = c.batch * c.q_len * c.q_heads, d = c.head_dim;
    auto* lse = workspace + rounded(splits * rows * d * 4);
    auto* list = lse + rounded(splits * rows * 4);
    const auto expect_rows = [&](const core::Tensor& t, const void* data, std::int64_t batch,
                                 std::int64_t columns) {
      EXPECT_EQ(t.data, data);
      EXPECT_EQ(t.dtype, TANDEM_FP32);
      EXPECT_THAT(t.shape, ElementsAre(batch, c.q_len, c.q_heads, columns));
      EXPECT_THAT(t.stride, ElementsAre(c.q_len * c.q_heads * columns, c.q_heads * columns, columns, 1));
    };
    expect_rows(both.parts.o, workspace, splits * c.batch, d);
    expect_rows(both.parts.lse, lse, splits * c.batch, 1);
    expect_rows(both.merge.o_parts, workspace, c.batch, d);
    expect_rows(both.merge.lse_parts, lse, c.batch, 1);
    EXPECT_EQ(both.parts_workspace, list);
    EXPECT_EQ(both.merge.parts, splits);
    EXPECT_EQ(both.merge.o_part_stride, rows * d);
    EXPECT_EQ(both.merge.lse_part_stride, rows);
    EXPECT_EQ(both.merge.o.data, p.o.data);
    EXPECT_EQ(both.merge.o.shape[3], d);
    EXPECT_EQ(both.merge.lse.data, p.lse.data);
    EXPECT_EQ(forward::split_workspace_bytes(p, splits),
              static_cast<std::size_t>(list - workspace) + forward::workspace_bytes(both.parts));
    // Each part of each entry has a tile list's places for all its queries.
    const forward::ForwardVariant& v = *forward::choose_variant(both.parts);
    const std::int64_t tile = v.block_m / forward::tiling_of(both.parts, v).packing.heads();
    EXPECT_EQ(forward::most_listed_tiles(both.parts, v), splits * c.batch * ((c.q_len + tile - 1) / tile));
    const auto args = forward::make_arguments(both.parts, v, 132);
    EXPECT_EQ(args.varlen.split_keys, varlen.split_keys);
    EXPECT_EQ(args.varlen.parts_batch.value(), c.batch);
    for (const auto& map : forward::make_record(both.parts, v, 132, list).maps) {
      if (map.name != nullptr) {
        EXPECT_STRNE(map.name, "o") << "parts are not stored by TMA";
      }
    }
    const forward::SplitForward nowhere = forward::split(p, splits, nullptr);
    EXPECT_EQ(nowhere.parts.lse.data, nullptr);
    EXPECT_EQ(nowhere.parts_workspace, nullptr);
  }
}

TEST(PartsPlan, PartsHaveKeysAndAreAtMostTwelveRoundsAnd128) {
  int chosen = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const ForwardCase c = drawn_parts(seed);
    SCOPED_TRACE(testing::Message() << c);
    const ForwardProblem p = problem_of(c);
    const forward::SplitChoice choice = forward::choose_splits(p);
    if (choice.splits == 1) continue;
    ++chosen;
    const std::int64_t keys = forward::split(p, choice.splits, nullptr).parts.varlen.split_keys;
    EXPECT_LT((choice.splits - 1) * keys, c.k_len) << "the last part has keys";
    EXPECT_LE(choice.splits, std::min<std::int64_t>(128, c.k_len / 256));
    const forward::ForwardVariant& v =
        *forward::choose_variant(forward::split(p, choice.splits, nullptr).parts);
    EXPECT_LE(choice.splits * forward::tiling_of(p, v).tiles() * c.batch, 12 * 132);
    EXPECT_GT(choice.us, 12);
  }
  EXPECT_GT(chosen, 100);
}

TEST(PartsPlan, WhatHasNoParts) {
  ForwardCase c = small_case();
  c.k_len = 512;
  const auto splits = [](const ForwardProblem& p) { return forward::choose_splits(p).splits; };
  EXPECT_EQ(splits(shapes_of(c)), 2);
  c.k_len = 511;
  EXPECT_EQ(splits(shapes_of(c)), 1) << "256 keys are the fewest of a part";
  c.k_len = 100000;
  const ForwardProblem base = shapes_of(c);
  EXPECT_GT(splits(base), 10);
  const std::vector<void (*)(ForwardProblem&)> hinder = {
      [](ForwardProblem& p) { p.varlen.given = true; },
      [](ForwardProblem& p) { p.sinks = at<const float>(1); },
      [](ForwardProblem& p) { p.slopes.data = at<const float>(1); },
      [](ForwardProblem& p) { p.tree = at<const std::uint64_t>(1); },
      [](ForwardProblem& p) { p.q.dtype = p.k.dtype = p.v.dtype = TANDEM_E4M3; },
      [](ForwardProblem& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TANDEM_FP32; },
      [](ForwardProblem& p) { p.overlap = TANDEM_OVERLAP_TWO_STAGE; },
      [](ForwardProblem& p) { p.turn = TANDEM_TURN_FREE; },
      [](ForwardProblem& p) { p.block_m = 64; },
      [](ForwardProblem& p) { p.block_n = 64; },
      [](ForwardProblem& p) { p.mask.left = 90000; },
      [](ForwardProblem& p) { p.q.shape[3] = p.k.shape[3] = 264; }};
  for (std::size_t i = 0; i < hinder.size(); ++i) {
    ForwardProblem p = base;
    hinder[i](p);
    EXPECT_EQ(splits(p), 1) << i;
  }
}

}  // namespace
}  // namespace tandem::test
