// What the batches of variable lengths that the tests draw have: no feature of the interface may be missing.
#include "tests/sim/varlen_draws.h"

#include <algorithm>
#include <iostream>

#include "tests/sim/coverage.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using forward::MaskKind;
using test::Coverage;
using test::VarlenCase;

std::string kind_of(const ForwardVariant& v) { return v.mask == MaskKind::prefix ? "prefix" : "band"; }

void count_sequences(Coverage& coverage, const ForwardVariant& v, const VarlenCase& c) {
  const std::string kind = kind_of(v);
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    const std::int64_t q_len = c.q_lens[i], k_len = c.k_lens[i];
    test::count_mask(coverage, kind, {c.mask, q_len, k_len, v.mask == MaskKind::band});
    test::count_edges(coverage, kind, "queries", q_len, v.block_m);
    test::count_edges(coverage, kind, "keys", k_len, v.block_n);
    coverage.count(kind, "a sequence without queries", q_len == 0 && k_len > 0);
    coverage.count(kind, "a sequence without keys", q_len > 0 && k_len == 0);
    coverage.count(kind, "several tiles a sequence", q_len > v.block_m);
    coverage.count(kind, "more key blocks than stages", k_len > v.block_n * v.kv_stages);
  }
}

void count_layout(Coverage& coverage, const ForwardVariant& v, const VarlenCase& c) {
  const std::string kind = kind_of(v);
  coverage.count(kind, "one sequence", c.q_lens.size() == 1);
  coverage.count(kind, "several sequences", c.q_lens.size() > 2);
  coverage.count(kind, "queries packed", c.q_packed);
  coverage.count(kind, "queries in entries", !c.q_packed);
  coverage.count(kind, "keys packed", c.keys == test::KeyLayout::packed);
  coverage.count(kind, "keys in entries", c.keys == test::KeyLayout::entries);
  for (std::int64_t size = 16; size <= 256; size *= 2)
    coverage.count(kind, "pages of " + std::to_string(size),
                   c.keys == test::KeyLayout::paged && c.page_size == size);
  test::count_heads(coverage, kind, {c.q_heads, c.kv_heads, c.head_dim, v.head_dim}, {1, 2, 4});
  if (v.mask == MaskKind::band) {
    coverage.count(kind, "softcap", c.softcap > 0);
    coverage.count(kind, "no slopes", !c.slopes);
    coverage.count(kind, "slopes of heads", c.slopes && !c.slopes_by_sequence);
    coverage.count(kind, "slopes of sequences and heads", c.slopes && c.slopes_by_sequence);
    coverage.count(kind, "no tree", !c.tree);
    coverage.count(kind, "a tree", c.tree && *std::ranges::min_element(c.q_lens) <= 64);
    coverage.count(kind, "a tree of 64 queries", c.tree && std::ranges::count(c.q_lens, 64) > 0);
    coverage.count(kind, "a tree beside more queries", c.tree && *std::ranges::max_element(c.q_lens) > 64);
    coverage.count(kind, "no chunks", c.mask.chunk == 0);
    coverage.count(kind, "causal chunks", c.mask.chunk > 0 && c.mask.right == 0);
    coverage.count(kind, "chunks with keys to the right", c.mask.chunk > 0 && c.mask.right > 0);
  }
  coverage.count(kind, "values of other columns", c.value_columns() != c.head_dim);
  if (v.has_narrow_values()) {
    coverage.count(kind, "narrow values, all columns",
                   c.head_dim == v.head_dim && c.value_dim == v.value_dim);
    coverage.count(kind, "narrow values in pages", c.keys == test::KeyLayout::paged);
    coverage.count(kind, "narrow values, packed", c.keys == test::KeyLayout::packed);
  }
  coverage.count(kind, "sinks", c.sinks);
  coverage.count(kind, "no sinks", !c.sinks);
  coverage.count(kind, "nothing appended", !c.appends());
  coverage.count(kind, "appended packed to pages",
                 c.appends() && c.new_packed && c.keys == test::KeyLayout::paged);
  coverage.count(kind, "appended to entries", c.appends() && c.keys == test::KeyLayout::entries);
  coverage.count(kind, "appended as many each", c.appends() && !c.new_packed);
  coverage.count(kind, "halves rotated", c.rotary_dim > 0 && !c.interleaved);
  coverage.count(kind, "neighbours rotated", c.rotary_dim > 0 && c.interleaved);
  coverage.count(kind, "angles of the dtype", c.rotary_dim > 0 && c.rotary_of_dtype);
  coverage.count(kind, "some columns rotated", c.rotary_dim > 0 && c.rotary_dim < c.head_dim);
  coverage.count(kind, "rotated, nothing appended", c.rotary_dim > 0 && !c.appends());
  coverage.count(kind, "padding", !c.padding.empty());
  coverage.count(kind, "appended behind padding", !c.padding.empty() && c.appends());
  coverage.count(kind, "indexed entries", c.batch_index);
  coverage.count(kind, "lse", c.lse);
  coverage.count(kind, "no lse", !c.lse);
}

TEST(VarlenDraws, HaveEveryFeatureForEveryKindOfMask) {
  Coverage coverage;
  const auto count = [&](const ForwardVariant& v, std::uint64_t seed) {
    const VarlenCase c = test::draw_varlen_case(v, seed);
    count_sequences(coverage, v, c);
    count_layout(coverage, v, c);
  };
  test::for_each_draw("EachSequenceEqualsItsOracleUnderEveryPolicy",
                      sim::forward_variants(forward::Lengths::varlen), count);
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

}  // namespace
}  // namespace tandem
