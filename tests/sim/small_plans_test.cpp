// Plans of merges and of quantisations: launches and arguments of drawn problems, and what is refused, at its
// limit and one beyond.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "core/dtype.h"
#include "merge/plan.h"
#include "quantize/plan.h"
#include "tests/support/merge_case.h"
#include "tests/support/quantize_case.h"

namespace tandem::test {
namespace {

using testing::HasSubstr;

std::string message_of(const core::MergeProblem& problem) {
  return std::string(merge::supported(problem).message());
}
std::string message_of(const core::QuantizeProblem& problem) {
  return std::string(quantize::supported(problem).message());
}

/// Shapes only: 64-bit sizes cost nothing.
core::MergeProblem merge_shapes(std::int64_t rows, std::int64_t head_dim, std::int64_t parts = 2) {
  core::MergeProblem p{};
  p.parts = parts;
  p.o_parts = p.o = {nullptr, TANDEM_FP32, {1, rows, 1, head_dim}, {0, head_dim, 0, 1}};
  p.lse_parts = p.lse = {nullptr, TANDEM_FP32, {1, rows, 1, 1}, {0, 1, 0, 1}};
  p.o_part_stride = rows * head_dim, p.lse_part_stride = rows;
  return p;
}

/// Threads of a row: the next power of two of its chunks of 8, at most a warp.
std::int64_t lanes_of(std::int64_t head_dim) {
  std::int64_t lanes = 1;
  while (lanes < 32 && lanes * 8 < head_dim) lanes *= 2;
  return lanes;
}

TEST(MergePlan, HasAThreadForEachChunkOfARowAndBlocksForAllRows) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const MergeTensors t(random_merge_case(seed));
    const core::MergeProblem p = t.problem();
    SCOPED_TRACE(testing::PrintToString(t.setup));
    const auto record = merge::make_record(p);
    const merge::MergeArguments& args = record.arguments;
    const std::int64_t all = p.rows() * lanes_of(p.head_dim());
    EXPECT_EQ(record.blocks, (all + 255) / 256);
    EXPECT_EQ(record.variant, (merge::MergeVariant{t.setup.in, t.setup.out}));
    EXPECT_EQ(args.parts, p.parts);
    EXPECT_EQ(args.rows, p.rows());
    EXPECT_EQ(args.chunks, p.head_dim() / 8);
    EXPECT_EQ(1 << args.lanes_shift, lanes_of(p.head_dim()));
    EXPECT_EQ(args.heads.value(), std::max<std::int64_t>(1, p.heads()));
    EXPECT_EQ(args.length.value(), std::max<std::int64_t>(1, p.length()));
    const auto is_of = [](const merge::PartsView& view, const core::Tensor& tensor, std::int64_t part) {
      return view.data == tensor.data && view.batch_stride == tensor.stride[0] &&
             view.row_stride == tensor.stride[1] && view.head_stride == tensor.stride[2] &&
             view.part_stride == part;
    };
    EXPECT_TRUE(is_of(args.o_parts, p.o_parts, p.o_part_stride));
    EXPECT_TRUE(is_of(args.lse_parts, p.lse_parts, p.lse_part_stride));
    EXPECT_TRUE(is_of(args.o, p.o, 0));
    EXPECT_TRUE(is_of(args.lse, p.lse, 0));
  }
}

TEST(MergePlan, TakesAsManyRowsAsThreadsCanBeCounted) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() - 256;
  for (const std::int64_t head_dim : {8, 16, 24, 64, 72, 128, 256, 264, 1024}) {
    const std::int64_t rows = most / lanes_of(head_dim);
    EXPECT_EQ(message_of(merge_shapes(rows, head_dim)), "") << head_dim;
    EXPECT_GT(merge::make_record(merge_shapes(rows, head_dim)).blocks, 0) << head_dim;
    EXPECT_THAT(message_of(merge_shapes(rows + 1, head_dim)),
                HasSubstr("o has " + std::to_string(rows + 1) + " rows of " + std::to_string(head_dim) +
                          " elements"));
  }
  EXPECT_EQ(message_of(merge_shapes(1, most / 8 * 8)), "");
  EXPECT_THAT(message_of(merge_shapes(1, most / 8 * 8 + 8)), HasSubstr("merge in pieces"));
}

TEST(MergePlan, TakesFewerPartsThanTwoTo30) {
  constexpr std::int64_t most = (std::int64_t{1} << 30) - 1;
  EXPECT_EQ(message_of(merge_shapes(3, 8, most)), "");
  EXPECT_THAT(message_of(merge_shapes(3, 8, most + 1)), HasSubstr("parts is 1073741824;"));
}

TEST(MergePlan, StepsOverWordsOf16Bytes) {
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    const std::int64_t unit = 16 / static_cast<std::int64_t>(core::size_of(dtype));
    for (const std::int64_t step : {unit, unit / 2, unit - 1, unit + 1, std::int64_t{1}})
      for (int i = 0; i < 3; ++i)
        for (const bool of_parts : {true, false}) {
          core::MergeProblem p = merge_shapes(3, 8);
          p.o_parts.dtype = p.o.dtype = dtype;
          (of_parts ? p.o_parts : p.o).stride[i] += step;
          const std::string name = of_parts ? "o_parts" : "o";
          if (step == unit) {
            EXPECT_EQ(message_of(p), "");
          } else {
            EXPECT_THAT(message_of(p), testing::StartsWith(name + ".stride[" + std::to_string(i) + "] is "));
          }
        }
    core::MergeProblem p = merge_shapes(3, 8);
    p.o_parts.dtype = p.o.dtype = dtype;
    p.o_part_stride += unit;
    EXPECT_EQ(message_of(p), "");
    p.o_part_stride += 1;
    EXPECT_THAT(message_of(p), HasSubstr("o_part_stride is " + std::to_string(p.o_part_stride) +
                                         " elements of " + std::to_string(16 / unit) + " bytes"));
    p.parts = 1;
    EXPECT_EQ(message_of(p), "");
  }
  core::MergeProblem p = merge_shapes(3, 8);
  for (std::uintptr_t address = 4096; address <= 4112; ++address) {
    p.o.data = nullptr, p.o_parts.data = reinterpret_cast<void*>(address);
    EXPECT_EQ(message_of(p).empty(), address % 16 == 0) << address;
    std::swap(p.o.data, p.o_parts.data);
    EXPECT_EQ(message_of(p).empty(), address % 16 == 0) << address;
  }
}

TEST(QuantizePlan, HasATileForEach128TokensOfAHead) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const QuantizeTensors t(random_quantize_case(seed));
    const core::QuantizeProblem p = t.problem();
    SCOPED_TRACE(testing::PrintToString(t.setup));
    const int sm_count = 1 + static_cast<int>(seed % 4);
    const auto record = quantize::make_record(p, sm_count);
    const quantize::QuantizeArguments& args = record.arguments;
    const std::int64_t blocks = (p.length() + 127) / 128, tiles = p.batch() * p.heads() * blocks;
    EXPECT_EQ(args.tiles, tiles);
    EXPECT_EQ(record.blocks, std::min(tiles, sm_count * 256 / p.head_dim())) << "all registers of each";
    EXPECT_EQ(record.variant.operand, t.setup.dtype == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16);
    EXPECT_EQ(record.variant.head_dim, p.head_dim());
    EXPECT_EQ(record.variant.by_column, p.by_column);
    EXPECT_EQ(record.variant.row_scales, p.best_scale);
    ASSERT_EQ(record.map_count, 1u);
    EXPECT_EQ(record.maps[0].tensor.data, p.x.data);
    EXPECT_EQ(record.maps[0].box.rows, 128);
    EXPECT_EQ(args.out.data, p.out.data);
    EXPECT_EQ(args.scale.data, p.scale.values.data);
    EXPECT_EQ(args.heads.value(), p.heads());
    EXPECT_EQ(args.blocks.value(), std::max<std::int64_t>(1, blocks));
    EXPECT_EQ(args.length, p.length());
    EXPECT_EQ(args.padded, p.by_column ? (p.length() + 15) / 16 * 16 : p.length());
    EXPECT_EQ(args.scale_given, p.scale_given);
    EXPECT_EQ(args.hadamard.on, p.hadamard);
    if (!p.hadamard) continue;
    EXPECT_EQ(args.hadamard.to_unit, 1.f / std::sqrt(static_cast<float>(p.head_dim())));
    if (p.best_scale) continue;  // each token has its own
    // Each block of threads finds the scale of its first token.
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t of_token = p.scale.values.shape[1] == 1 ? 0 : block * 128 / p.scale.block;
      EXPECT_EQ(args.scale_block.divide(static_cast<int>(block)).quotient, of_token);
    }
    for (int column = 0; column < 256; ++column)
      EXPECT_EQ((args.hadamard.signs[column / 32] >> column % 32 & 1) != 0,
                core::changes_sign(p.seed, column));
  }
}

TEST(QuantizePlan, TakesScalesOfBlocksThatThreadsShare) {
  const auto message = [](ScaleCase scale, bool given, std::int64_t length) {
    QuantizeCase c{.batch = 2, .length = length, .heads = 2, .scale = scale, .scale_given = given};
    c.out.row_gap = 16;
    return message_of(QuantizeTensors(c).problem());
  };
  EXPECT_EQ(message({true, 128, 2}, false, 300), "");
  EXPECT_EQ(message({true, 0, 2}, false, 128), "") << "all tokens share one, and are of one block";
  EXPECT_THAT(message({true, 0, 2}, false, 129), HasSubstr("scale has shape [2, 1, 2, 1]"));
  EXPECT_EQ(message({true, 0, 2}, true, 129), "") << "given ones may be anyone's";
  EXPECT_THAT(message({false, 128, 2}, false, 300), HasSubstr("scale has shape [1, 3, 2, 1]"));
  EXPECT_EQ(message({false, 128, 2}, true, 300), "");
  EXPECT_EQ(message({true, 256, 2}, true, 600), "");
  for (const std::int64_t block : {64, 127, 129, 192})
    EXPECT_THAT(message({true, block, 2}, true, 600), HasSubstr("block is " + std::to_string(block) + ";"));
}

TEST(QuantizePlan, TakesAsManyBlocksAsAnIntCounts) {
  const QuantizeTensors t({.length = 256, .heads = 2, .scale = {true, 128, 2}, .out = {.row_gap = 16}});
  core::QuantizeProblem p = t.problem();
  p.scale_given = true;
  p.x.shape[0] = p.out.shape[0] = 1 << 28;
  p.x.shape[2] = p.out.shape[2] = 7;
  p.x.shape[1] = p.out.shape[1] = 128;
  EXPECT_EQ(message_of(p), "") << "7 * 2^28 blocks";
  p.x.shape[2] = p.out.shape[2] = 8;
  EXPECT_THAT(message_of(p), HasSubstr("quantise in pieces")) << "2^31";
}

TEST(QuantizePlan, TakesHeadDims64And128And256) {
  for (const std::int64_t d : {8, 56, 64, 72, 120, 128, 136, 192, 248, 256, 264, 512}) {
    QuantizeCase c{.length = 3, .head_dim = d, .out = {.row_gap = 16}};
    const std::string message = message_of(QuantizeTensors(c).problem());
    EXPECT_EQ(message.empty(), d == 64 || d == 128 || d == 256) << d << message;
  }
}

}  // namespace
}  // namespace tandem::test
