// Which steps decode's kernels take, and which of them serves: by the words that a refusal has, and by the
// kernel that is chosen.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "decode/plan.h"
#include "tests/support/decode_case.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::DecodeCase;
using test::DecodeTensors;

TEST(DecodeVariants, AnEightBitCacheHasKernelsOfItsOwn) {
  const auto chosen = [](std::size_t batch, bool per_token) {
    DecodeCase c;
    c.head_dim = 128, c.kv_heads = 8, c.q_heads = 32, c.capacity = 8192;
    c.lengths.assign(batch, 7);
    c.eight_bit = {.on = true, .per_token = per_token};
    return *decode::choose_variant(DecodeTensors(c).problem());
  };
  for (const bool per_token : {false, true}) {
    EXPECT_TRUE(chosen(1, per_token).eight_bit());
    EXPECT_EQ(chosen(1, per_token).token_scales, per_token);
    EXPECT_EQ(chosen(1, per_token).resident, 1) << "little to read: fewer parts to merge";
    EXPECT_EQ(chosen(3, per_token).resident, 2) << "much to read";
  }
}

TEST(DecodeVariants, KnowTheCachesElementsAndItsHadamardMatrix) {
  for (const bool int8 : {false, true}) {
    for (const bool hadamard : {false, true}) {
      DecodeCase c;
      c.eight_bit = {.on = true, .int8 = int8, .hadamard = hadamard};
      const DecodeVariant& chosen = *decode::choose_variant(DecodeTensors(c).problem());
      EXPECT_EQ(chosen.element, int8 ? decode::Element::int8 : decode::Element::e4m3);
      EXPECT_EQ(chosen.hadamard, int8 || hadamard) << "those of int8 ask";
    }
  }
}

TEST(DecodePlan, OfAnEmptyBatchIsNoLaunchButOfAnEmptyCacheIsOne) {
  const DecodeTensors tensors({.head_dim = 128});
  core::DecodeProblem problem = tensors.problem();
  const DecodeVariant& variant = *decode::choose_variant(problem);
  EXPECT_EQ(decode::make_plan_record(problem, variant, 3, nullptr).blocks, 1);
  EXPECT_GT(decode::make_record(problem, variant, 3, nullptr).blocks, 0);
  core::DecodeProblem keyless = problem;
  keyless.k_cache.shape[1] = keyless.v_cache.shape[1] = 0;
  EXPECT_GT(decode::make_record(keyless, variant, 3, nullptr).blocks, 0) << "outputs are zeroed";
  problem.q.shape[0] = problem.o.shape[0] = problem.lse.shape[0] = 0;
  EXPECT_EQ(decode::make_plan_record(problem, variant, 3, nullptr).blocks, 0);
  EXPECT_EQ(decode::make_record(problem, variant, 3, nullptr).blocks, 0);
}

TEST(DecodeOnHopper, NamesTheTensorsThatItCannotTake) {
  const auto message_of = [](const core::DecodeProblem& problem) {
    return std::string(decode::supported(problem).message());
  };
  const auto names = [&](const core::DecodeProblem& problem, const std::string& words) {
    return message_of(problem).find(words) != std::string::npos;
  };
  const DecodeTensors t({.q_len = 2, .q_heads = 2, .head_dim = 128, .new_len = 2, .lengths = {3, 5}});
  const core::DecodeProblem good = t.problem();
  EXPECT_EQ(message_of(good), "");
  const std::vector<std::pair<const char*, core::Tensor core::DecodeProblem::*>> tensors = {
      {"q", &core::DecodeProblem::q},
      {"cache.k", &core::DecodeProblem::k_cache},
      {"cache.v", &core::DecodeProblem::v_cache},
      {"k_new", &core::DecodeProblem::k_new},
      {"v_new", &core::DecodeProblem::v_new},
      {"o", &core::DecodeProblem::o}};
  for (const auto& [name, tensor] : tensors) {
    core::DecodeProblem p = good;
    (p.*tensor).stride[1] += 1;
    EXPECT_TRUE(names(p, std::string(name) + ".stride")) << name << ": " << message_of(p);
  }
  core::DecodeProblem p = good;
  p.k_new.data = nullptr, p.k_new.shape[1] = p.v_new.shape[1] = 0;
  p.k_new.stride[1] = p.v_new.stride[1] = 1;
  EXPECT_EQ(message_of(p), "") << "where nothing is appended, its strides are nobody's";
  p = good, p.q.stride[0] = p.k_cache.stride[0] = p.v_cache.stride[0] = 0;
  EXPECT_EQ(message_of(p), "") << "sequences may share what they read";
  p = good, p.rotary.cos = reinterpret_cast<const void*>(0x1008);
  EXPECT_TRUE(names(p, "rotary.cos is not aligned")) << message_of(p);
}

TEST(DecodeOnHopper, NamesTheOptionsThatItCannotTake) {
  const DecodeTensors t({.q_len = 2, .q_heads = 2, .head_dim = 128, .lengths = {3, 5}});
  const auto message_of = [](const core::DecodeProblem& problem) {
    return std::string(decode::supported(problem).message());
  };
  core::DecodeProblem p = t.problem();
  ASSERT_EQ(message_of(p), "");
  p.mask.chunk = 7;
  EXPECT_NE(message_of(p).find("mask.chunk is 7"), std::string::npos) << message_of(p);
  const float slopes[2] = {};
  p = t.problem(), p.slopes = {slopes, 0};
  EXPECT_NE(message_of(p).find("alibi_slopes are given"), std::string::npos) << message_of(p);
  const std::uint64_t tree[4] = {};
  p = t.problem(), p.tree = tree;
  EXPECT_NE(message_of(p).find("a tree is given"), std::string::npos) << message_of(p);
}

TEST(DecodeOnHopper, TakesValuesOfAnotherHeadDimInTheKeysOnly) {
  const auto message_of = [](const core::DecodeProblem& problem) {
    return std::string(decode::supported(problem).message());
  };
  DecodeCase c{.q_heads = 16, .head_dim = 576, .new_len = 1, .lengths = {3, 5}};
  test::put_values_into_keys(c, 512);
  const DecodeTensors in_keys(c);
  EXPECT_EQ(message_of(in_keys.problem()), "");
  const DecodeVariant& variant = *decode::choose_variant(in_keys.problem());
  EXPECT_TRUE(variant.values_in_keys());
  EXPECT_EQ(variant.query_rows, 16);
  core::DecodeProblem p = in_keys.problem();
  p.v_cache.stride[1] += 8;
  EXPECT_NE(message_of(p).find("cache.v has head dim 512 and cache.k 576"), std::string::npos)
      << message_of(p);
  p = in_keys.problem(), p.v_new.data = in_keys.q.view().data;
  EXPECT_NE(message_of(p).find("v_new"), std::string::npos) << message_of(p);
  for (const std::int64_t value_dim : {64, 136}) {  // in memory of their own, fewer and more
    const DecodeTensors apart({.head_dim = 128, .value_dim = value_dim});
    EXPECT_NE(message_of(apart.problem()).find("cache.k 128"), std::string::npos);
  }
  const DecodeTensors wide({.head_dim = 576, .value_dim = 576});
  EXPECT_NE(message_of(wide.problem()).find("head dim 576"), std::string::npos) << message_of(wide.problem());
}

TEST(DecodeOnHopper, TakesASecondPartOfQueriesOf64And512ColumnsOnly) {
  const auto message_of = [](DecodeCase c, std::int64_t value_dim) {
    test::give_second_part(c, value_dim);
    return std::string(decode::supported(DecodeTensors(c).problem()).message());
  };
  EXPECT_EQ(message_of({.head_dim = 64}, 512), "");
  DecodeCase c{.q_heads = 128, .head_dim = 64, .lengths = std::vector<std::int32_t>(64, 7), .capacity = 8192};
  test::give_second_part(c, 512);
  const DecodeVariant& variant = *decode::choose_variant(DecodeTensors(c).problem());
  EXPECT_TRUE(variant.two_part_keys);
  EXPECT_EQ(variant.query_rows, 64);
  for (const auto& [head_dim, value_dim] : {std::pair{64, 504}, {56, 512}, {128, 512}, {64, 64}})
    EXPECT_NE(message_of({.head_dim = head_dim}, value_dim).find("qv is given"), std::string::npos);
  DecodeCase eight_bit{.head_dim = 64};
  eight_bit.eight_bit.on = true;
  EXPECT_NE(message_of(eight_bit, 512).find("cache.k.dtype e4m3"), std::string::npos);
}

TEST(DecodeOnHopper, LatentAttentionOfManyHeadsTakesWideTiles) {
  for (const auto& [heads, rows] : {std::pair{16, 16}, {17, 32}, {32, 32}, {64, 64}, {128, 64}}) {
    DecodeCase c{
        .q_heads = heads, .head_dim = 576, .lengths = std::vector<std::int32_t>(64, 7), .capacity = 8192};
    test::put_values_into_keys(c, 512);
    const DecodeVariant& variant = *decode::choose_variant(DecodeTensors(c).problem());
    EXPECT_EQ(variant.query_rows, rows) << heads;
    EXPECT_EQ(variant.paired(), rows == 64);
    core::DecodeProblem fixed = DecodeTensors(c).problem();
    fixed.split_size = 256;
    EXPECT_EQ(decode::choose_variant(fixed)->query_rows, std::min(rows, 32)) << "those merge in the step";
  }
}

}  // namespace
}  // namespace tandem
