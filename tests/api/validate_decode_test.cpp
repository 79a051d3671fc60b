// What validation makes of a decoding step that is right.
#include <algorithm>
#include <gtest/gtest.h>

#include "api/validate.h"
#include "tests/api/request.h"

namespace tandem::test {
namespace {

core::DecodeProblem validated(const tandem_decode_args& args) {
  core::DecodeProblem problem{};
  const core::Status status = api::validate_decode(&args, /*need_data=*/true, &problem);
  EXPECT_TRUE(status.ok()) << status.message();
  return problem;
}

TEST(ValidateDecode, PassesEverythingOn) {
  DecodeCase c = small_step();
  c.softcap = 3, c.split_size = 128, c.kernel = TANDEM_DECODE_SHARED_P, c.interleaved = true;
  const DecodeRequest request(c);
  tandem_decode_args args = request.args;
  args.plan = &c;
  const core::DecodeProblem p = validated(args), expected = request.tensors.problem();
  EXPECT_EQ(p.q.data, expected.q.data);
  EXPECT_EQ(p.k_cache.data, expected.k_cache.data);
  EXPECT_EQ(p.v_cache.data, expected.v_cache.data);
  EXPECT_EQ(p.k_new.data, expected.k_new.data);
  EXPECT_EQ(p.v_new.data, expected.v_new.data);
  EXPECT_EQ(p.page_table, expected.page_table);
  EXPECT_EQ(p.lengths, expected.lengths);
  EXPECT_EQ(p.batch_index, expected.batch_index);
  EXPECT_EQ(p.page_table_stride, expected.page_table_stride);
  EXPECT_EQ(p.capacity(), 48);
  EXPECT_EQ(p.new_len(), 5);
  EXPECT_EQ(p.rotary.cos, expected.rotary.cos);
  EXPECT_EQ(p.rotary.sin, expected.rotary.sin);
  EXPECT_EQ(p.rotary.positions, expected.rotary.positions);
  EXPECT_EQ(p.rotary.dim, 16);
  EXPECT_TRUE(p.rotary.interleaved);
  EXPECT_EQ(p.scale, 0.25f);
  EXPECT_EQ(p.softcap, 3);
  EXPECT_EQ(p.split_size, 128);
  EXPECT_EQ(p.plan, &c);
  EXPECT_EQ(p.kernel, TANDEM_DECODE_SHARED_P);
}

TEST(ValidateDecode, PassesPrefixesOn) {
  DecodeCase c = small_step();
  c.prefix_sequences = {0, 2}, c.prefix_lengths = {1};
  const DecodeRequest request(c);
  const core::SharedPrefixes shared = validated(request.args).prefixes;
  EXPECT_EQ(shared.groups, 1);
  EXPECT_EQ(shared.cu_sequences, request.tensors.setup.prefix_sequences.data());
  EXPECT_EQ(shared.lengths, request.tensors.setup.prefix_lengths.data());
}

TEST(ValidateDecode, DropsWhatIsNotThere) {
  DecodeCase c = small_step();
  c.page_size = 0, c.new_len = 0, c.rotary_dim = 0, c.lse = false, c.batch_index = false;
  DecodeRequest request(c);
  request.cache.page_table_stride = 77;
  request.cache.pages_per_sequence = -5;
  request.args.k_new.shape[1] = request.args.lse.shape[0] = -9;
  const core::DecodeProblem p = validated(request.args);
  EXPECT_FALSE(p.paged());
  EXPECT_EQ(p.capacity(), 48);
  EXPECT_EQ(p.new_len(), 0);
  EXPECT_EQ(p.rotary.cos, nullptr);
  EXPECT_EQ(p.rotary.dim, 0);
  EXPECT_EQ(p.lse.shape[0], 0);
}

TEST(ValidateDecode, AMaskThatHidesNothingForAnyLengthIsFull) {
  DecodeCase c = small_step();
  c.q_len = 1;
  DecodeRequest request(c);
  request.mask = Mask::causal().c_mask();
  EXPECT_TRUE(validated(request.args).mask.is_full()) << "one query sees every key";
  request.mask = Mask::window(47, 0).c_mask();
  EXPECT_TRUE(validated(request.args).mask.is_full()) << "the capacity is 48";
  request.mask = Mask::window(46, 0).c_mask();
  EXPECT_EQ(validated(request.args).mask.left, 46);
}

TEST(ValidateDecode, AChunkOfMoreThanAllKeysIsOfAll) {
  DecodeRequest request(small_step());
  for (const std::int64_t chunk :
       {std::int64_t{1}, std::int64_t{47}, std::int64_t{48}, std::int64_t{1} << 32}) {
    request.mask = Mask::full().c_mask();
    request.mask.chunk = chunk;
    EXPECT_EQ(validated(request.args).mask.chunk, std::min<std::int64_t>(chunk, 48));
  }
}

}  // namespace
}  // namespace tandem::test
