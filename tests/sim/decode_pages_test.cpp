// Pages and entries that do not exist, on the software Hopper: their keys and values count as 0, and what is
// appended to them is dropped.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "decode/plan.h"
#include "tests/sim/runs.h"
#include "tests/sim/workspace.h"
#include "tests/support/decode_case.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::DecodeCase;
using test::DecodeTensors;

/// The first of each algorithm, head dim and kind of scales: what row tiles are alike in.
std::vector<DecodeVariant> variants_of_each_kind() {
  std::vector<DecodeVariant> variants;
  for (const DecodeVariant& v : sim::decode_variants()) {
    const bool known = std::ranges::any_of(variants, [&](const DecodeVariant& other) {
      return other.algorithm == v.algorithm && other.head_dim == v.head_dim &&
             other.token_scales == v.token_scales && other.element == v.element &&
             other.hadamard == v.hadamard && other.two_part_keys == v.two_part_keys;
    });
    if (!known) variants.push_back(v);
  }
  return variants;
}

class DecodePagesOnSim : public testing::TestWithParam<DecodeVariant> {
 protected:
  /// Four sequences of more than a page each.
  DecodeCase four_sequences(bool paged) const {
    const DecodeVariant& v = GetParam();
    DecodeCase c;
    c.dtype = v.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16, c.head_dim = v.head_dim;
    c.q_heads = 4, c.kv_heads = 2, c.capacity = 64, c.lengths = {48, 40, 33, 48};
    c.page_size = paged ? 16 : 0, c.batch_index = !paged;
    if (v.eight_bit()) c.eight_bit = {.on = true, .per_token = v.token_scales};
    c.eight_bit.int8 = v.element == decode::Element::int8, c.eight_bit.hadamard = v.hadamard;
    if (v.two_part_keys) {
      c.head_dim = v.head_dim - v.value_dim;
      test::give_second_part(c, v.value_dim);
    } else if (v.values_in_keys()) {
      test::put_values_into_keys(c, v.value_dim);
    }
    c.cache.row_gap = 16;
    return c;
  }
  void run(DecodeTensors& tensors, const core::DecodeProblem& problem) {
    const sim::DecodeMemory memory{
        workspace_.of(decode::workspace_bytes(problem, GetParam())), tensors.page_table, {}};
    sim::Machine machine;
    machine.multiprocessors = 3;
    const hw::sim::Report report = sim::simulate_decode(problem, GetParam(), memory, machine);
    ASSERT_TRUE(report.ok()) << report.text();
  }
  void run(DecodeTensors& tensors) { run(tensors, tensors.problem()); }

  test::Workspace workspace_;
};
INSTANTIATE_TEST_SUITE_P(Variants, DecodePagesOnSim, testing::ValuesIn(variants_of_each_kind()),
                         test::test_name<DecodeVariant>);

/// Just beyond the last page, and far from any.
std::array<std::int32_t, 4> wild_pages(const DecodeTensors& t) {
  return {static_cast<std::int32_t>(t.k_cache.view().shape[0]), -1, std::numeric_limits<std::int32_t>::max(),
          std::numeric_limits<std::int32_t>::min()};
}

/// The first page or entry that is no sequence's: it gets zeros with scales of 1.
std::int32_t make_zeros(DecodeTensors& t) {
  const core::Tensor cache = t.k_cache.view();
  std::vector<bool> used(static_cast<std::size_t>(cache.shape[0]));
  for (std::int64_t b = 0; b < t.setup.batch(); ++b)
    for (std::int64_t s = 0; s < t.setup.length(b); ++s)
      used[static_cast<std::size_t>(t.place(b, s).page)] = true;
  const auto page = std::find(used.begin(), used.end(), false) - used.begin();
  for (std::int64_t row = 0; row < cache.shape[1]; ++row)
    for (std::int64_t h = 0; h < cache.shape[2]; ++h) {
      for (std::int64_t e = 0; e < cache.shape[3]; ++e) t.k_cache.set(page, row, h, e, 0);
      for (std::int64_t e = 0; !t.setup.values_in_keys && e < t.setup.value_columns(); ++e)
        t.v_cache.set(page, row, h, e, 0);
      if (t.setup.eight_bit.per_token) t.k_scale.set(page, row, h, 0, 1), t.v_scale.set(page, row, h, 0, 1);
    }
  return static_cast<std::int32_t>(page);
}

TEST_P(DecodePagesOnSim, KeysOfPagesThatDoNotExistCountAsZeros) {
  const DecodeCase c = four_sequences(true);
  DecodeTensors wild(c), zeros(c);
  const std::int32_t page = make_zeros(zeros);
  for (std::size_t b = 0; b < 4; ++b) {  // each has one in another place
    const auto slot = b * static_cast<std::size_t>(wild.page_table_stride) + b % 3;
    wild.page_table[slot] = wild_pages(wild)[b], zeros.page_table[slot] = page;
  }
  run(wild), run(zeros);
  EXPECT_TRUE(test::same_bytes(wild.o, zeros.o));
  EXPECT_TRUE(test::same_bytes(wild.lse, zeros.lse));
}

TEST_P(DecodePagesOnSim, KeysOfEntriesThatDoNotExistCountAsZeros) {
  const DecodeCase c = four_sequences(false);
  DecodeTensors wild(c), zeros(c);
  const std::int32_t entry = make_zeros(zeros);
  for (std::size_t b = 0; b < 4; ++b) {
    if (b == 2) continue;  // one is as it was
    wild.batch_index[b] = wild_pages(wild)[b], zeros.batch_index[b] = entry;
  }
  run(wild), run(zeros);
  EXPECT_TRUE(test::same_bytes(wild.o, zeros.o));
  EXPECT_TRUE(test::same_bytes(wild.lse, zeros.lse));
}

TEST_P(DecodePagesOnSim, WhatIsAppendedToAPageThatDoesNotExistIsDropped) {
  DecodeCase c = four_sequences(true);
  c.new_len = 2, c.lengths = {47, 32, 47, 16};  // across a page's end, or behind it
  DecodeTensors t(c);
  const DecodeTensors before(c);
  for (std::size_t b = 0; b < 4; ++b) {
    const auto last = static_cast<std::size_t>((c.lengths[b] + 1) / 16);
    t.page_table[b * static_cast<std::size_t>(t.page_table_stride) + last] = wild_pages(t)[b];
  }
  run(t);
  // The first tokens of sequences 0 and 2 have a page. Nothing else was written.
  DecodeTensors expected(c);
  for (const std::int64_t b : {0, 2}) {
    const auto [page, row] = before.place(b, 47);
    for (std::int64_t h = 0; h < c.kv_heads; ++h) {
      for (std::int64_t e = 0; e < c.head_dim; ++e)
        expected.k_cache.copy_element(t.k_cache, {page, row, h, e});
      for (std::int64_t e = 0; !c.values_in_keys && e < c.value_columns(); ++e)
        expected.v_cache.copy_element(t.v_cache, {page, row, h, e});
      if (c.eight_bit.per_token) {
        expected.k_scale.copy_element(t.k_scale, {page, row, h, 0});
        expected.v_scale.copy_element(t.v_scale, {page, row, h, 0});
      }
    }
  }
  EXPECT_TRUE(test::same_bytes(t.k_cache, expected.k_cache));
  EXPECT_TRUE(test::same_bytes(t.v_cache, expected.v_cache));
  EXPECT_TRUE(test::same_bytes(t.k_scale, expected.k_scale));
  EXPECT_TRUE(test::same_bytes(t.v_scale, expected.v_scale));
}

}  // namespace
}  // namespace tandem
