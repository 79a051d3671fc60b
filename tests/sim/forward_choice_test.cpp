// Which variant serves a problem: by default, and where an overlap or turns are asked for.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "apps/sim/forward_sim.h"
#include "forward/plan.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using forward::choose_variant;
using forward::ForwardVariant;
using forward::MaskKind;
using forward::Overlap;
using forward::TurnPolicy;

/// Every dtype, head dim up to `most` and mask that Hopper takes, at a short and a long length.
template <typename Visit>
void for_each_case(std::int64_t most, Visit&& visit) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16})
    for (std::int64_t head_dim = 8; head_dim <= most; head_dim += 8)
      for (const core::Mask mask : {core::Mask::full(), core::Mask::causal(), core::Mask{100, 30}})
        for (const std::int64_t length : {100, 16384}) {
          ForwardCase c;
          c.dtype = dtype, c.head_dim = head_dim, c.mask = mask, c.q_len = c.k_len = length;
          visit(c);
        }
}

bool has_window(const ForwardCase& c) { return c.mask.left != core::Mask::unlimited; }

TEST(ChooseVariant, ServesEveryDtypeHeadDimAndMaskWithTheLeastPadding) {
  static constexpr int built[] = {64, 96, 128, 192, 256, 512};
  for_each_case(512, [](ForwardCase c) {
    for (const float softcap : {0.f, 30.f}) {
      c.softcap = softcap;
      const ForwardVariant* v = choose_variant(shapes_of(c));
      ASSERT_NE(v, nullptr) << c;
      EXPECT_EQ(v->head_dim, *std::lower_bound(built, std::end(built), c.head_dim)) << c;
      EXPECT_EQ(v->mask, has_window(c) ? MaskKind::band : MaskKind::prefix) << c;
      EXPECT_EQ(v->operand, c.dtype == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16) << c;
      EXPECT_EQ(v->softcap, softcap > 0) << c;
    }
  });
}

TEST(ChooseVariant, HonoursEveryOverlapWithEitherTurn) {
  const std::pair<tandem_overlap, Overlap> overlaps[] = {{TANDEM_OVERLAP_SERIAL, Overlap::serial},
                                                         {TANDEM_OVERLAP_TWO_STAGE, Overlap::two_stage},
                                                         {TANDEM_OVERLAP_THREE_STAGE, Overlap::three_stage}};
  const std::pair<tandem_turn, TurnPolicy> turns[] = {{TANDEM_TURN_FREE, TurnPolicy::free},
                                                      {TANDEM_TURN_PINGPONG, TurnPolicy::pingpong}};
  for_each_case(256, [&](ForwardCase c) {
    const int head_dim = choose_variant(shapes_of(c))->head_dim;
    for (const auto& [overlap, expected_overlap] : overlaps)
      for (const auto& [turn, expected_turn] : turns) {
        c.overlap = overlap, c.turn = turn;
        const ForwardVariant* v = choose_variant(shapes_of(c));
        ASSERT_NE(v, nullptr) << c;
        EXPECT_EQ(v->overlap, expected_overlap) << c;
        EXPECT_EQ(v->turn, expected_turn) << c;
        EXPECT_EQ(v->head_dim, head_dim) << c;
        EXPECT_TRUE(v->mask == MaskKind::band || !has_window(c)) << c;
        EXPECT_EQ(v->operand, c.dtype == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16) << c;
      }
  });
}

TEST(ChooseVariant, HonoursOneOfOverlapAndTurnWithAnyOfTheOther) {
  ForwardCase c;
  c.head_dim = 128, c.q_len = c.k_len = 300;
  c.overlap = TANDEM_OVERLAP_THREE_STAGE;
  EXPECT_EQ(choose_variant(shapes_of(c))->overlap, Overlap::three_stage);
  c.overlap = TANDEM_OVERLAP_AUTO;
  for (const auto& [asked, expected] : {std::pair{TANDEM_TURN_FREE, TurnPolicy::free},
                                        std::pair{TANDEM_TURN_PINGPONG, TurnPolicy::pingpong}}) {
    c.turn = asked;
    EXPECT_EQ(choose_variant(shapes_of(c))->turn, expected);
  }
}

TEST(ChooseVariant, WhatIsPreferredByDefaultAlsoServesWhoAsksForIt) {
  for_each_case(512, [](ForwardCase c) {
    const ForwardVariant* by_default = choose_variant(shapes_of(c));
    c.overlap = static_cast<tandem_overlap>(static_cast<int>(by_default->overlap) + TANDEM_OVERLAP_SERIAL);
    c.turn = by_default->turn == TurnPolicy::free ? TANDEM_TURN_FREE : TANDEM_TURN_PINGPONG;
    EXPECT_EQ(choose_variant(shapes_of(c)), by_default) << c;
  });
}

TEST(ChooseVariant, HonoursEveryTileThatIsBuilt) {
  for (const forward::Candidate& candidate : forward::all_candidates()) {
    const ForwardVariant& v = candidate.variant;
    if (v.lengths == forward::Lengths::varlen || v.is_8_bit()) continue;
    ForwardCase c;
    c.dtype = v.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
    c.head_dim = v.head_dim, c.q_len = c.k_len = 300;
    if (v.has_narrow_values()) c.value_dim = v.value_dim;
    c.softcap = v.softcap ? 10.f : 0.f;
    if (v.mask == MaskKind::band) c.mask = core::Mask{100, 30};
    if (v.block_sparse) c.blocks = {.q_block = 128, .k_block = 128};
    c.overlap = static_cast<tandem_overlap>(static_cast<int>(v.overlap) + TANDEM_OVERLAP_SERIAL);
    c.turn = v.turn == TurnPolicy::free ? TANDEM_TURN_FREE : TANDEM_TURN_PINGPONG;
    c.block_m = v.block_m, c.block_n = v.block_n;
    ASSERT_NE(choose_variant(shapes_of(c)), nullptr) << c;
    EXPECT_EQ(*choose_variant(shapes_of(c)), v) << c;
  }
}

/// What the kernels for narrow values may not know.
struct Features {
  bool varlen = false, softcap = false, window = false, sinks = false, chunks = false, slopes = false,
       tree = false;
};
constexpr Features features[] = {{},
                                 {.varlen = true},
                                 {.softcap = true},
                                 {.varlen = true, .softcap = true},
                                 {.window = true},
                                 {.varlen = true, .window = true},
                                 {.sinks = true},
                                 {.chunks = true},
                                 {.slopes = true},
                                 {.tree = true},
                                 {.softcap = true, .slopes = true}};

/// The variant for 300 queries and keys of such head dims.
const ForwardVariant* variant_for(std::int64_t head_dim, std::int64_t value_dim, const Features& f) {
  static constexpr float numbers[4] = {};
  static constexpr std::uint64_t words[300] = {};
  ForwardCase c;
  c.head_dim = head_dim, c.value_dim = value_dim, c.q_len = c.k_len = 300;
  core::ForwardProblem p = shapes_of(c);
  if (f.softcap) p.softcap = 30;
  if (f.window) p.mask = core::Mask{100, 30};
  if (f.chunks) p.mask.chunk = 70;
  if (f.varlen) p.varlen = {.given = true, .sequences = 1, .max_seqlen_q = 300, .max_seqlen_k = 300};
  if (f.sinks) p.sinks = numbers;
  if (f.slopes) p.slopes = {numbers, 0};
  if (f.tree) p.tree = words;
  return choose_variant(forward::for_kernels(p));
}

TEST(ChooseVariant, TakesKernelsOfNarrowValuesForThemAndNeverElse) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
    for (std::int64_t value_dim = 8; value_dim <= 256; value_dim += 8)
      for (const Features& f : features) {
        if (head_dim > 192 && (f.chunks || f.tree)) continue;
        const ForwardVariant* v = variant_for(head_dim, value_dim, f);
        if (v == nullptr) {
          EXPECT_TRUE(value_dim > 192 && (f.chunks || f.tree)) << head_dim << "/" << value_dim;
          continue;
        }
        const bool narrow = head_dim > 128 && head_dim <= 192 && value_dim <= 128 && !f.softcap;
        EXPECT_EQ(v->has_narrow_values(), narrow) << head_dim << "/" << value_dim;
        EXPECT_GE(v->head_dim, head_dim);
        EXPECT_GE(v->value_dim, value_dim);
        const bool band = f.window || f.chunks || f.slopes || f.tree;
        if (narrow) {
          EXPECT_EQ(v->mask, band ? MaskKind::band : MaskKind::prefix) << head_dim << "/" << value_dim;
        }
        const bool list = f.varlen || f.sinks || f.chunks || f.slopes || f.tree;
        EXPECT_EQ(v->lengths, list ? forward::Lengths::varlen : forward::Lengths::uniform);
      }
  EXPECT_EQ(variant_for(192, 128, {})->value_dim, 128);
  EXPECT_EQ(variant_for(136, 8, {})->head_dim, 192);
  EXPECT_EQ(variant_for(192, 128, {.softcap = true})->value_dim, 192) << "padded";
}

TEST(ChooseVariant, TakesPaddedKernelsOfNarrowValuesWhereTheyAreAskedFor) {
  ForwardCase c;
  c.head_dim = 192, c.value_dim = 128, c.q_len = c.k_len = 300;
  c.overlap = TANDEM_OVERLAP_SERIAL;
  EXPECT_EQ(choose_variant(shapes_of(c))->value_dim, 192) << "a kernel for study";
  c.overlap = TANDEM_OVERLAP_AUTO, c.block_n = 96;
  EXPECT_EQ(choose_variant(shapes_of(c))->value_dim, 192) << "no other has such blocks";
}

TEST(ForwardVariant, StagesNarrowOutputsWhereTheyFit) {
  for (const ForwardVariant& v : sim::forward_variants()) {
    if (!v.has_narrow_values()) continue;
    const std::int64_t operands = 2 * (v.block_m * v.head_dim +
                                       v.kv_stages * v.block_n * (v.head_dim + v.value_dim)),
                       output = std::int64_t{2} * v.block_m * v.value_dim, barriers_and_alignment = 2048;
    EXPECT_EQ(v.can_stage_output(), operands + output + barriers_and_alignment <= 227 * 1024)
        << sim::name_of(v);
  }
}

TEST(ChooseVariant, NamesWhatWasAskedForWhereItIsNotBuilt) {
  ForwardCase c;
  c.dtype = TANDEM_FP16, c.head_dim = 128, c.softcap = 20;
  c.overlap = TANDEM_OVERLAP_THREE_STAGE, c.turn = TANDEM_TURN_PINGPONG;
  ASSERT_EQ(choose_variant(shapes_of(c)), nullptr) << "kernels for study have no cap";
  const core::Status status = forward::no_variant(shapes_of(c));
  EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED);
  for (const char* words :
       {"fp16", "head dim 128", "softcap", "TANDEM_OVERLAP_THREE_STAGE", "TANDEM_TURN_PINGPONG"})
    EXPECT_THAT(status.message(), testing::HasSubstr(words));
  c.dtype = TANDEM_FP32, c.softcap = 0;
  EXPECT_EQ(choose_variant(shapes_of(c)), nullptr);
}

std::string message_of(const core::ForwardProblem& problem) {
  return std::string(forward::supported(problem).message());
}

TEST(ForwardOnHopper, NamesTheTensorsThatItCannotTake) {
  const ForwardTensors t({.dtype = TANDEM_BF16, .batch = 2, .q_len = 3, .k_len = 5, .head_dim = 64});
  const core::ForwardProblem good = t.problem();
  EXPECT_EQ(message_of(good), "");
  const std::vector<std::pair<std::string, core::Tensor core::ForwardProblem::*>> tensors = {
      {"q", &core::ForwardProblem::q},
      {"k", &core::ForwardProblem::k},
      {"v", &core::ForwardProblem::v},
      {"o", &core::ForwardProblem::o}};
  for (const auto& [name, tensor] : tensors) {
    core::ForwardProblem p = good;
    (p.*tensor).stride[1] += 1;
    EXPECT_THAT(message_of(p), testing::HasSubstr(name + ".stride"));
  }
  core::ForwardProblem p = good;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TANDEM_FP32;
  EXPECT_FALSE(forward::supported(p).ok()) << "no kernel takes fp32";
}

TEST(ForwardOnHopper, TakesSlopesOfAllHeadDimsAndChunksAndTreesUpTo192) {
  const float slopes[4] = {};
  const std::uint64_t tree[64] = {};
  for (const std::int64_t head_dim : {64, 192, 200}) {
    const ForwardTensors t({.q_len = 30, .k_len = 30, .head_dim = head_dim});
    const auto message_with = [&](const auto& change) {
      core::ForwardProblem p = t.problem();
      change(p);
      return message_of(forward::for_kernels(p));
    };
    EXPECT_EQ(message_with([&](core::ForwardProblem& p) { p.slopes = {slopes, 0}; }), "") << head_dim;
    const std::string chunks = message_with([](core::ForwardProblem&p) { p.mask.chunk = 9; }),
                      drafts = message_with([&](core::ForwardProblem&p) { p.tree = tree; });
    if (head_dim <= 192) {
      EXPECT_EQ(chunks + drafts, "");
      continue;
    }
    EXPECT_THAT(chunks,
                testing::AllOf(testing::HasSubstr("head dim 200, chunks"), testing::HasSubstr("192")));
    EXPECT_THAT(drafts,
                testing::AllOf(testing::HasSubstr("head dim 200, a tree"), testing::HasSubstr("192")));
  }
}

TEST(ForwardOnHopper, TakesValuesOfOtherColumnsByTheWiderKernelUnlessItAppends) {
  ForwardCase c{.q_len = 30, .k_len = 30, .head_dim = 64};
  c.value_dim = 128;
  const ForwardTensors t(c);
  EXPECT_EQ(message_of(t.problem()), "");
  EXPECT_EQ(choose_variant(t.problem())->head_dim, 128);
  core::ForwardProblem p = t.problem();
  p.varlen = {
      .given = true, .sequences = 1, .max_seqlen_q = 30, .max_seqlen_k = 30, .k_new = p.k, .v_new = p.v};
  EXPECT_THAT(message_of(p), testing::AllOf(testing::HasSubstr("v.shape[3] (head dim) is 128"),
                                            testing::HasSubstr("q.shape[3] 64")));
}

TEST(ForwardOnHopper, NamesTheSizesThatItCannotTake) {
  const Layout dense{.row_gap = 0};
  const ForwardTensors t({.dtype = TANDEM_E4M3,
                          .batch = 2,
                          .q_len = 3,
                          .k_len = 300,
                          .head_dim = 64,
                          .q = dense,
                          .k = dense,
                          .v = dense});
  const core::ForwardProblem good = t.problem();
  EXPECT_EQ(message_of(good), "");
  float scale = 1;
  for (const auto& [name, scales] :
       {std::pair{"scales.k_block", &core::Quantisation::k}, {"scales.v_block", &core::Quantisation::v}}) {
    core::ForwardProblem p = good;
    core::Scales& own = p.quantisation.*scales;
    own.values.data = &scale, own.values.shape[1] = 5, own.block = 64;
    EXPECT_THAT(message_of(p), testing::HasSubstr(std::string(name) + " is 64"));
    own.values.shape[1] = 3, own.block = 128;
    EXPECT_EQ(message_of(p), "");
    own.values.shape[1] = 1, own.block = 300;
    EXPECT_EQ(message_of(p), "") << "one block may have any size";
  }
  const std::int32_t page = 0;
  core::ForwardProblem p = good;
  p.varlen.page_table = &page, p.k.shape[1] = p.v.shape[1] = 24;
  EXPECT_THAT(message_of(p), testing::HasSubstr("(page size) is 24"));
  p.k.shape[1] = p.v.shape[1] = 8;
  EXPECT_THAT(message_of(p), testing::HasSubstr("(page size) is 8"));
  p.k.shape[1] = p.v.shape[1] = 16;
  EXPECT_EQ(message_of(p), "");
  p = good;
  p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = p.o.shape[0] = 1 << 28;
  EXPECT_EQ(message_of(p), "");
  for (core::Tensor* tensor : {&p.q, &p.k, &p.v, &p.o}) tensor->shape[2] = 4;
  EXPECT_THAT(message_of(p), testing::HasSubstr("exceeds 2^30 tiles"));
}

TEST(Table, HasEveryVariantOnce) {
  std::vector<std::string> names;
  for (const ForwardVariant& variant : sim::forward_variants()) names.push_back(sim::name_of(variant));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace tandem::test
