// What problems' lists of tensors say of each: its name, role and extent, where a problem has everything and
// where it lacks one thing.
#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <vector>

#include "core/backward_problem.h"
#include "core/decode_problem.h"
#include "core/merge_problem.h"
#include "core/problem.h"
#include "core/quantize_problem.h"

namespace tandem::core {
namespace {

/// An address, known by its number.
void* at(std::uintptr_t number) { return reinterpret_cast<void*>(number * 4096); }
template <typename T>
T* at(std::uintptr_t number) {
  return static_cast<T*>(at(number));
}

/// A tensor with strides that are nobody else's.
Tensor tensor(std::uintptr_t number, tandem_dtype dtype, std::int64_t b, std::int64_t s, std::int64_t h,
              std::int64_t d) {
  const auto n = static_cast<std::int64_t>(number);
  return {at(number), dtype, {b, s, h, d}, {1000 * n, 100 * n, 10 * n, 1}};
}

std::string line(const std::string& name, Role role, const void* data, std::int64_t bytes,
                 const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& stride) {
  static constexpr const char* roles[] = {"input", "output", "updated"};
  std::ostringstream out;
  out << name << " " << roles[static_cast<int>(role)] << " at " << data << " of " << bytes << " bytes, shape "
      << testing::PrintToString(shape) << " stride " << testing::PrintToString(stride);
  return out.str();
}

std::vector<std::string> lines(const TensorList& list) {
  std::vector<std::string> all;
  for (const ListedTensor& t : list)
    all.push_back(line(t.address_name(), t.role, t.region.data, t.region.element_bytes,
                       {std::begin(t.region.shape), std::end(t.region.shape)},
                       {std::begin(t.region.stride), std::end(t.region.stride)}));
  return all;
}

std::int64_t bytes_of(tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_FP32:
      return 4;
    case TANDEM_E4M3:
      return 1;
    default:
      return 2;
  }
}

/// As a list ought to say it.
std::string parts(const std::string& name, Role role, const Tensor& t, std::int64_t count,
                  std::int64_t part_stride) {
  return line(name + ".data", role, t.data, bytes_of(t.dtype),
              {count, t.shape[0], t.shape[1], t.shape[2], t.shape[3]},
              {part_stride, t.stride[0], t.stride[1], t.stride[2], t.stride[3]});
}
std::string whole(const std::string& name, Role role, const Tensor& t) { return parts(name, role, t, 1, 0); }
std::string rows(const std::string& name, const void* data, std::int64_t bytes, std::int64_t count,
                 std::int64_t columns, std::int64_t stride) {
  return line(name, Role::input, data, bytes, {1, 1, 1, count, columns},
              {0, 0, 0, count == 1 ? 0 : stride, 1});
}
std::string tree(const void* data, std::int64_t words) { return rows("tree", data, 8, 1, words, 0); }
std::string array(const std::string& name, const void* data, std::int64_t count) {
  return rows(name, data, 4, 1, count, 0);
}

/// Takes what begins with one of these names out of a list.
std::vector<std::string> without(std::vector<std::string> list, const std::vector<std::string>& names) {
  std::erase_if(list, [&](const std::string& entry) {
    for (const std::string& name : names)
      if (entry.starts_with(name + " ")) return true;
    return false;
  });
  return list;
}

ForwardProblem whole_forward() {
  ForwardProblem p{};
  p.q = tensor(1, TANDEM_E4M3, 2, 30, 6, 64), p.k = tensor(2, TANDEM_E4M3, 9, 16, 3, 64);
  p.v = tensor(3, TANDEM_E4M3, 9, 16, 3, 64), p.o = tensor(4, TANDEM_BF16, 2, 30, 6, 64);
  p.lse = tensor(5, TANDEM_FP32, 2, 30, 6, 1);
  p.sinks = at<const float>(6);
  p.slopes = {at<const float>(21), 10}, p.tree = at<const std::uint64_t>(22);
  p.quantisation.q = {tensor(7, TANDEM_FP32, 1, 1, 6, 1), 30};
  p.quantisation.k = {tensor(8, TANDEM_FP32, 1, 1, 3, 1), 16};
  p.quantisation.v = {tensor(9, TANDEM_FP32, 1, 1, 1, 1), 16};
  Varlen& v = p.varlen;
  v.given = true, v.sequences = 7;
  v.cu_seqlens_q = at<const std::int32_t>(10), v.cu_seqlens_k = at<const std::int32_t>(11);
  v.seqused_k = at<const std::int32_t>(12), v.leftpad_k = at<const std::int32_t>(13);
  v.batch_index = at<const std::int32_t>(14), v.cu_seqlens_k_new = at<const std::int32_t>(15);
  v.k_new = tensor(16, TANDEM_BF16, 1, 11, 3, 64), v.v_new = tensor(17, TANDEM_BF16, 1, 11, 3, 64);
  v.rotary = {at(18), at(19), TANDEM_BF16, 40, 32, false};
  v.page_table = at<const std::int32_t>(20), v.page_table_stride = 5, v.pages_per_sequence = 4;
  return p;
}

std::vector<std::string> lines_of_whole(const ForwardProblem& p) {
  return {whole("q", Role::input, p.q),
          whole("k", Role::updated, p.k),
          whole("v", Role::updated, p.v),
          whole("o", Role::output, p.o),
          whole("lse", Role::output, p.lse),
          array("sinks", p.sinks, 6),
          rows("alibi_slopes", p.slopes.data, 4, 7, 6, 10),
          tree(p.tree, 2 * 30),
          whole("scales.q", Role::input, p.quantisation.q.values),
          whole("scales.k", Role::input, p.quantisation.k.values),
          whole("scales.v", Role::input, p.quantisation.v.values),
          array("varlen.cu_seqlens_q", p.varlen.cu_seqlens_q, 8),
          array("varlen.cu_seqlens_k", p.varlen.cu_seqlens_k, 8),
          array("varlen.seqused_k", p.varlen.seqused_k, 7),
          array("varlen.leftpad_k", p.varlen.leftpad_k, 7),
          array("varlen.batch_index", p.varlen.batch_index, 7),
          array("varlen.cu_seqlens_k_new", p.varlen.cu_seqlens_k_new, 8),
          whole("varlen.k_new", Role::input, p.varlen.k_new),
          whole("varlen.v_new", Role::input, p.varlen.v_new),
          rows("varlen.rotary.cos", p.varlen.rotary.cos, 2, 40, 16, 16),
          rows("varlen.rotary.sin", p.varlen.rotary.sin, 2, 40, 16, 16),
          rows("varlen.page_table", p.varlen.page_table, 4, 7, 4, 5)};
}

TEST(ProblemRegions, OfAForwardThatHasEverything) {
  const ForwardProblem p = whole_forward();
  EXPECT_EQ(lines(tensors_of(p)), lines_of_whole(p));
}

TEST(ProblemRegions, OfAForwardThatLacksOneThing) {
  struct Lack {
    void (*change)(ForwardProblem&);
    std::vector<std::string> names;
  };
  const std::vector<Lack> lacks = {
      {[](ForwardProblem& p) { p.lse.data = nullptr; }, {"lse.data"}},
      {[](ForwardProblem& p) { p.sinks = nullptr; }, {"sinks"}},
      {[](ForwardProblem& p) { p.slopes.data = nullptr; }, {"alibi_slopes"}},
      {[](ForwardProblem& p) { p.tree = nullptr; }, {"tree"}},
      {[](ForwardProblem& p) { p.quantisation.q.values.data = nullptr; }, {"scales.q.data"}},
      {[](ForwardProblem& p) { p.quantisation.k.values.data = nullptr; }, {"scales.k.data"}},
      {[](ForwardProblem& p) { p.quantisation.v.values.data = nullptr; }, {"scales.v.data"}},
      {[](ForwardProblem& p) { p.varlen.cu_seqlens_q = nullptr; }, {"varlen.cu_seqlens_q"}},
      {[](ForwardProblem& p) { p.varlen.cu_seqlens_k = nullptr; }, {"varlen.cu_seqlens_k"}},
      {[](ForwardProblem& p) { p.varlen.seqused_k = nullptr; }, {"varlen.seqused_k"}},
      {[](ForwardProblem& p) { p.varlen.leftpad_k = nullptr; }, {"varlen.leftpad_k"}},
      {[](ForwardProblem& p) { p.varlen.batch_index = nullptr; }, {"varlen.batch_index"}},
      {[](ForwardProblem& p) { p.varlen.cu_seqlens_k_new = nullptr; }, {"varlen.cu_seqlens_k_new"}},
      {[](ForwardProblem& p) { p.varlen.rotary.cos = nullptr; }, {"varlen.rotary.cos", "varlen.rotary.sin"}},
      {[](ForwardProblem& p) { p.varlen.page_table = nullptr; }, {"varlen.page_table"}}};
  for (const Lack& lack : lacks) {
    ForwardProblem p = whole_forward();
    const std::vector<std::string> expected = without(lines_of_whole(p), lack.names);
    lack.change(p);
    EXPECT_EQ(lines(tensors_of(p)), expected) << lack.names[0];
  }
}

TEST(ProblemRegions, OfAForwardThatAppendsNothingSaysThatTheCacheIsRead) {
  ForwardProblem p = whole_forward();
  std::vector<std::string> expected =
      without(lines_of_whole(p), {"varlen.k_new.data", "varlen.v_new.data", "varlen.cu_seqlens_k_new"});
  expected[1] = whole("k", Role::input, p.k), expected[2] = whole("v", Role::input, p.v);
  p.varlen.k_new.data = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), expected);
}

TEST(ProblemRegions, SlopesThatAllSequencesShareAreOneRow) {
  ForwardProblem p = whole_forward();
  p.slopes.stride = 0;
  std::vector<std::string> expected = lines_of_whole(p);
  expected[6] = array("alibi_slopes", p.slopes.data, 6);
  EXPECT_EQ(lines(tensors_of(p)), expected);
  EXPECT_EQ(p.slopes.of_sequence(3).data, p.slopes.data);
  p.slopes.stride = 10;
  EXPECT_EQ(p.slopes.of_sequence(3).data, p.slopes.data + 30);
  EXPECT_FALSE(Slopes{}.of_sequence(3).given());
}

TEST(ProblemRegions, AWordOfATreeShowsItsBitsAndAllKeysBeforeTheQueries) {
  for (const std::int64_t bit : {-70, -1, 0, 1, 31, 32, 62, 63, 64, 65, 100}) {
    EXPECT_TRUE(word_shows(0, bit)) << "0 hides nothing";
    for (int own = 0; own < 64; ++own)
      EXPECT_EQ(word_shows(std::uint64_t{1} << own, bit), bit < 0 || bit == own) << own << " " << bit;
  }
  const std::uint64_t words[] = {1, 2, 4, 8, 16, 32};  // of 2 entries of 3 queries
  ForwardProblem p{};
  p.q.shape[0] = 2, p.q.shape[1] = 3, p.k.shape[1] = 10;
  EXPECT_TRUE(p.shows(0, 0, 0, 9)) << "no tree";
  p.tree = words;
  EXPECT_TRUE(p.shows(0, 0, 0, 6) && p.shows(0, 0, 0, 7));
  EXPECT_FALSE(p.shows(0, 0, 0, 8));
  EXPECT_TRUE(p.shows(0, 2, 0, 9));
  EXPECT_FALSE(p.shows(1, 2, 0, 9)) << "its word is 32";
  p.q.shape[1] = 64;
  EXPECT_TRUE(p.is_tree());
  p.q.shape[1] = 65;
  EXPECT_FALSE(p.is_tree());
}

DecodeProblem whole_step() {
  DecodeProblem p{};
  p.q = tensor(1, TANDEM_BF16, 5, 2, 6, 64);
  p.k_cache = tensor(2, TANDEM_E4M3, 20, 16, 3, 64), p.v_cache = tensor(3, TANDEM_E4M3, 20, 16, 3, 64);
  p.k_new = tensor(4, TANDEM_BF16, 5, 4, 3, 64), p.v_new = tensor(5, TANDEM_BF16, 5, 4, 3, 64);
  p.o = tensor(6, TANDEM_BF16, 5, 2, 6, 64), p.lse = tensor(7, TANDEM_FP32, 5, 2, 6, 1);
  p.page_table = at<const std::int32_t>(8), p.page_table_stride = 9, p.pages_per_sequence = 7;
  p.lengths = at<const std::int32_t>(10);
  p.rotary = {at(11), at(12), TANDEM_FP32, 112, 16, true};
  p.sinks = at<const float>(13);
  p.slopes = {at<const float>(16), 8}, p.tree = at<const std::uint64_t>(17);
  p.scales = {tensor(14, TANDEM_FP32, 20, 16, 3, 1), tensor(15, TANDEM_FP32, 20, 16, 3, 1), true, false, 0};
  return p;
}

std::vector<std::string> lines_of_whole(const DecodeProblem& p, Role cache, Role scales) {
  return {whole("q", Role::input, p.q),
          whole("k_new", Role::input, p.k_new),
          whole("v_new", Role::input, p.v_new),
          array("cache.lengths", p.lengths, 5),
          rows("cache.page_table", p.page_table, 4, 5, 7, 9),
          rows("rotary.cos", p.rotary.cos, 4, 112, 8, 8),
          rows("rotary.sin", p.rotary.sin, 4, 112, 8, 8),
          array("sinks", p.sinks, 6),
          rows("alibi_slopes", p.slopes.data, 4, 5, 6, 8),
          tree(p.tree, 5 * 2),
          whole("cache.k", cache, p.k_cache),
          whole("cache.v", cache, p.v_cache),
          whole("scales.k", scales, p.scales.k),
          whole("scales.v", scales, p.scales.v),
          whole("o", Role::output, p.o),
          whole("lse", Role::output, p.lse)};
}

TEST(ProblemRegions, OfAStepThatHasEverythingOrLacksOneThing) {
  const DecodeProblem p = whole_step();
  const std::vector<std::string> all = lines_of_whole(p, Role::updated, Role::updated);
  EXPECT_EQ(lines(tensors_of(p)), all);
  struct Lack {
    void (*change)(DecodeProblem&);
    std::vector<std::string> names;
  };
  const std::vector<Lack> lacks = {
      {[](DecodeProblem& x) { x.k_new.shape[1] = x.v_new.shape[1] = 0; }, {"k_new.data", "v_new.data"}},
      {[](DecodeProblem& x) { x.lengths = nullptr; }, {"cache.lengths"}},
      {[](DecodeProblem& x) { x.page_table = nullptr; }, {"cache.page_table"}},
      {[](DecodeProblem& x) { x.rotary.cos = nullptr; }, {"rotary.cos", "rotary.sin"}},
      {[](DecodeProblem& x) { x.sinks = nullptr; }, {"sinks"}},
      {[](DecodeProblem& x) { x.slopes.data = nullptr; }, {"alibi_slopes"}},
      {[](DecodeProblem& x) { x.tree = nullptr; }, {"tree"}},
      {[](DecodeProblem& x) { x.scales.k.data = nullptr; }, {"scales.k.data"}},
      {[](DecodeProblem& x) { x.scales.v.data = nullptr; }, {"scales.v.data"}},
      {[](DecodeProblem& x) { x.lse.data = nullptr; }, {"lse.data"}}};
  for (const Lack& lack : lacks) {
    DecodeProblem changed = p;
    lack.change(changed);
    EXPECT_EQ(lines(tensors_of(changed)), without(all, lack.names)) << lack.names[0];
  }
}

TEST(ProblemRegions, OfAStepThatReadsOnlySaysSoOfTheCacheAndItsScales) {
  DecodeProblem p = whole_step();
  const auto reading = [](const DecodeProblem& x, Role scales) {
    return without(lines_of_whole(x, Role::input, scales), {"k_new.data", "v_new.data"});
  };
  p.k_new.data = p.v_new.data = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), reading(p, Role::input));
  p = whole_step(), p.scales.per_token = false;
  EXPECT_EQ(lines(tensors_of(p)), lines_of_whole(p, Role::updated, Role::input)) << "nobody writes them";
}

TEST(ProblemRegions, ValuesThatLieInTheKeysAreNoMemoryOfTheirOwn) {
  DecodeProblem p = whole_step();
  p.v_cache = p.k_cache, p.v_new = p.k_new;
  p.v_cache.shape[3] = p.v_new.shape[3] = p.o.shape[3] = 48;
  ASSERT_TRUE(p.values_in_keys());
  const std::vector<std::string> all = lines_of_whole(p, Role::updated, Role::updated);
  EXPECT_EQ(lines(tensors_of(p)), without(all, {"cache.v.data"}));
  struct Apart {
    void (*change)(DecodeProblem&);
    const char* what;
  };
  for (const Apart& apart : std::vector<Apart>{
           {[](DecodeProblem& x) { x.v_cache.shape[3] = 64; }, "as many columns"},
           {[](DecodeProblem& x) { x.v_cache.data = at(9); }, "another address"},
           {[](DecodeProblem& x) { x.v_cache.stride[1] += 8; }, "another stride"},
           {[](DecodeProblem& x) { x.v_new.data = at(9); }, "new values of another address"},
           {[](DecodeProblem& x) { x.v_new.stride[2] += 8; }, "new values of another stride"}}) {
    DecodeProblem changed = p;
    apart.change(changed);
    EXPECT_FALSE(changed.values_in_keys()) << apart.what;
    EXPECT_EQ(lines(tensors_of(changed)).size(), all.size()) << apart.what;
  }
  p.k_new.data = nullptr, p.v_new.data = at(9);
  EXPECT_TRUE(p.values_in_keys()) << "where nothing is appended, new ones are nobody's";
}

BackwardProblem whole_backward() {
  BackwardProblem p{};
  p.q = tensor(1, TANDEM_BF16, 2, 30, 6, 64), p.k = tensor(2, TANDEM_BF16, 2, 40, 3, 64);
  p.v = tensor(3, TANDEM_BF16, 2, 40, 3, 64), p.o = tensor(4, TANDEM_BF16, 2, 30, 6, 64);
  p.lse = tensor(5, TANDEM_FP32, 2, 30, 6, 1), p.dout = tensor(6, TANDEM_BF16, 2, 30, 6, 64);
  p.dlse = tensor(7, TANDEM_FP32, 2, 30, 6, 1), p.dq = tensor(8, TANDEM_BF16, 2, 30, 6, 64);
  p.dk = tensor(9, TANDEM_BF16, 2, 40, 3, 64), p.dv = tensor(10, TANDEM_BF16, 2, 40, 3, 64);
  p.mask = {100, 3}, p.scale = 0.5f, p.softcap = 7.f;
  p.sinks = at<const float>(11), p.dsinks = at<float>(12);
  return p;
}

TEST(ProblemRegions, OfABackward) {
  BackwardProblem p = whole_backward();
  std::string dsinks = array("dsinks", p.dsinks, 6);
  dsinks.replace(dsinks.find("input"), 5, "output");
  std::vector<std::string> expected = {whole("q", Role::input, p.q),       whole("k", Role::input, p.k),
                                       whole("v", Role::input, p.v),       whole("o", Role::input, p.o),
                                       whole("lse", Role::input, p.lse),   whole("dout", Role::input, p.dout),
                                       whole("dlse", Role::input, p.dlse), whole("dq", Role::output, p.dq),
                                       whole("dk", Role::output, p.dk),    whole("dv", Role::output, p.dv),
                                       array("sinks", p.sinks, 6),         dsinks};
  EXPECT_EQ(lines(tensors_of(p)), expected);
  p.dlse.data = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), expected = without(expected, {"dlse.data"}));
  p.dsinks = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), without(expected, {"sinks", "dsinks"})) << "then sinks are not read";
}

// Of sequences a list has as many rows as the most queries of one need.
TEST(ProblemRegions, OfABlockListOfVariableLengths) {
  ForwardProblem p = whole_forward();
  p.varlen.max_seqlen_q = 33;
  p.blocks = {8, 16, at<const std::int32_t>(23), at<const std::int32_t>(24), 3, 30, 5};
  const std::vector<std::string> all = lines(tensors_of(p));
  EXPECT_EQ(without(all, {"block_list.counts", "block_list.blocks"}), lines_of_whole(p));
  const auto begin = std::ranges::find(
      all, line("block_list.counts", Role::input, p.blocks.counts, 4, {1, 7, 6, 5, 1}, {0, 30, 5, 1, 1}));
  ASSERT_NE(begin, all.end());
  EXPECT_EQ(begin[1],
            line("block_list.blocks", Role::input, p.blocks.blocks, 4, {1, 7, 6, 5, 3}, {0, 90, 15, 3, 1}));
}

TEST(ProblemRegions, OfABackwardOfVariableLengths) {
  BackwardProblem p = whole_backward();
  p.dsinks = nullptr;
  std::vector<std::string> expected = lines(tensors_of(p));
  p.varlen = {.given = true,
              .sequences = 5,
              .cu_seqlens_q = at<const std::int32_t>(13),
              .cu_seqlens_k = at<const std::int32_t>(14),
              .seqused_k = at<const std::int32_t>(15),
              .max_seqlen_q = 20,
              .max_seqlen_k = 25};
  for (const std::string& lengths : {array("varlen.cu_seqlens_q", p.varlen.cu_seqlens_q, 6),
                                     array("varlen.cu_seqlens_k", p.varlen.cu_seqlens_k, 6),
                                     array("varlen.seqused_k", p.varlen.seqused_k, 5)})
    expected.push_back(lengths);
  EXPECT_EQ(lines(tensors_of(p)), expected);
  p.varlen.cu_seqlens_q = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), without(expected, {"varlen.cu_seqlens_q"}));
  EXPECT_EQ(p.batch(), 5);
  EXPECT_EQ(p.q_len(), 20) << "as much as a sequence may have";
  EXPECT_EQ(p.k_len(), 25);
  EXPECT_EQ(forward_of(p).batch(), 5);
}

TEST(ProblemRegions, TheForwardOfABackwardIsWhoseGradientsTheyAre) {
  const BackwardProblem p = whole_backward();
  const ForwardProblem forward = forward_of(p);
  EXPECT_EQ(lines(tensors_of(forward)),
            (std::vector<std::string>{whole("q", Role::input, p.q), whole("k", Role::input, p.k),
                                      whole("v", Role::input, p.v), whole("o", Role::output, p.o),
                                      whole("lse", Role::output, p.lse), array("sinks", p.sinks, 6)}));
  EXPECT_EQ(forward.mask.left, 100);
  EXPECT_EQ(forward.mask.right, 3);
  EXPECT_EQ(forward.scale, 0.5f);
  EXPECT_EQ(forward.softcap, 7.f);
  EXPECT_EQ(backward_flops(p), 2.5 * forward_flops(forward));
  EXPECT_EQ(p.group(), 2);
}

TEST(ProblemRegions, OfAMerge) {
  MergeProblem p{};
  p.parts = 3;
  p.o_parts = tensor(1, TANDEM_FP32, 2, 5, 7, 16), p.lse_parts = tensor(2, TANDEM_FP32, 2, 5, 7, 1);
  p.o_part_stride = 1234, p.lse_part_stride = 567;
  p.o = tensor(3, TANDEM_BF16, 2, 5, 7, 16), p.lse = tensor(4, TANDEM_FP32, 2, 5, 7, 1);
  const std::vector<std::string> expected = {
      parts("o_parts", Role::input, p.o_parts, 3, 1234), parts("lse_parts", Role::input, p.lse_parts, 3, 567),
      whole("o", Role::output, p.o), whole("lse", Role::output, p.lse)};
  EXPECT_EQ(lines(tensors_of(p)), expected);
  EXPECT_EQ(p.rows(), 2 * 5 * 7);
  EXPECT_EQ(p.batch(), 2);
  EXPECT_EQ(p.length(), 5);
  EXPECT_EQ(p.heads(), 7);
  EXPECT_EQ(p.head_dim(), 16);
  p.lse.data = nullptr;
  EXPECT_EQ(lines(tensors_of(p)), without(expected, {"lse.data"}));
  p.parts = 1;
  EXPECT_EQ(lines(tensors_of(p))[0], parts("o_parts", Role::input, p.o_parts, 1, 0))
      << "nothing is a part away from the only one";
  const std::int64_t place[] = {1, 4, 6};
  EXPECT_EQ(part_row<float>(p.o_parts, p.o_part_stride, 2, place),
            static_cast<const float*>(p.o_parts.data) + 2 * 1234 + 1000 + 4 * 100 + 6 * 10);
}

TEST(ProblemRegions, OfAQuantisation) {
  QuantizeProblem p{};
  p.x = tensor(1, TANDEM_FP16, 2, 300, 3, 64), p.out = tensor(2, TANDEM_E4M3, 2, 64, 3, 304);
  p.scale = {tensor(3, TANDEM_FP32, 2, 3, 3, 1), 128};
  for (const bool given : {false, true}) {
    p.scale_given = given;
    EXPECT_EQ(lines(tensors_of(p)),
              (std::vector<std::string>{whole("x", Role::input, p.x), whole("out", Role::output, p.out),
                                        whole("scale", given ? Role::input : Role::output, p.scale.values)}));
  }
}

}  // namespace
}  // namespace tandem::core
