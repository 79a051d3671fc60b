// What the problems that the forward's tests draw have: no feature of the interface may be missing.
#include "tests/sim/forward_draws.h"

#include <bit>

#include "tests/sim/coverage.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using forward::MaskKind;
using test::Coverage;
using test::ForwardCase;

void count_lengths(Coverage& coverage, const std::string& kind, const ForwardVariant& v,
                   const ForwardCase& c) {
  coverage.count(kind, "no key", c.k_len == 0);
  test::count_edges(coverage, kind, "queries", c.q_len, v.block_m);
  test::count_edges(coverage, kind, "keys", c.k_len, v.block_n);
  coverage.count(kind, "one key block", c.k_len > 0 && c.k_len <= v.block_n);
  coverage.count(kind, "more key blocks than stages", c.k_len * v.block_parts() > v.block_n * v.kv_stages);
  coverage.count(kind, "several tiles a head", c.q_len > v.block_m);
}

void count_options(Coverage& coverage, const std::string& kind, const ForwardVariant& v,
                   const ForwardCase& c) {
  for (const std::int64_t batch : {1, 2, 3})
    coverage.count(kind, "batch " + std::to_string(batch), c.batch == batch);
  test::count_heads(coverage, kind, {c.q_heads, c.kv_heads, c.head_dim, v.head_dim}, {1, 2, 3});
  coverage.count(kind, "lse", c.lse);
  coverage.count(kind, "no lse", !c.lse);
  coverage.count(kind, "scale given", c.scale > 0);
  if (v.has_narrow_values()) {
    coverage.count(kind, "narrow values, all columns",
                   c.head_dim == v.head_dim && c.value_dim == v.value_dim);
    coverage.count(kind, "narrow values of less than a panel", c.value_dim < 64);
    coverage.count(kind, "narrow values of more than a panel", c.value_dim > 64 && c.value_dim < v.value_dim);
  }
  coverage.count(kind, "gaps between rows", c.q.row_gap > 0 && c.k.row_gap > 0 && c.o.row_gap > 0);
}

void count_packs(Coverage& coverage, const std::string& kind, const ForwardVariant& v, const ForwardCase& c) {
  const int heads = forward::tiling_of(test::shapes_of(c), v).packing.heads();
  for (int size = 2; size <= 64; size *= 2)
    coverage.count(kind, "packs of " + std::to_string(size), heads == size);
  coverage.count(kind, "packs that are no whole group", c.q_heads / c.kv_heads > heads);
  coverage.count(kind, "several tiles a pack", heads > 1 && c.q_len * heads > v.block_m);
  coverage.count(kind, "ragged packs", heads > 1 && c.q_len * heads % v.block_m != 0);
}

/// What 8-bit inputs have besides.
void count_eight_bit(Coverage& coverage, const std::string& kind, const ForwardCase& c) {
  const test::EightBitCase& e = c.eight_bit;
  coverage.count(kind, "output of bf16", e.output == TANDEM_BF16);
  coverage.count(kind, "output of fp16", e.output == TANDEM_FP16);
  coverage.count(kind, "queries and keys of int8", c.dtype == TANDEM_INT8);
  coverage.count(kind, "int8 whose scores are large", c.dtype == TANDEM_INT8 && e.q.heads + e.k.heads == 0);
  coverage.count(kind, "values of two terms", e.v_terms == 2);
  coverage.count(kind, "two terms in padded columns", e.v_terms == 2 && c.head_dim % 64 != 0);
  coverage.count(kind, "values transposed", e.v_transposed);
  coverage.count(kind, "values not transposed", !e.v_transposed);
  coverage.count(kind, "no scales at all", e.q.heads + e.k.heads + e.v.heads == 0);
  coverage.count(kind, "scales of q a head", e.q.heads > 1);
  coverage.count(kind, "scales of k a head", e.k.heads > 1);
  coverage.count(kind, "scales of q a block", e.q.heads > 0 && e.q.block > 0 && e.q.block < c.q_len);
  coverage.count(kind, "scales of k a block", e.k.heads > 0 && e.k.block > 0 && e.k.block < c.k_len);
  coverage.count(kind, "scales of v a block", e.v.heads > 0 && e.v.block > 0 && e.v.block < c.k_len);
  coverage.count(kind, "scales a batch entry", e.k.heads > 0 && e.k.each_batch && c.batch > 1);
}

std::string kind_of(const ForwardVariant& v) {
  if (v.is_8_bit()) return "8 bits";
  if (v.shares_rows()) return "wide";
  static constexpr const char* overlaps[] = {"serial", "two-stage", "three-stage"};
  return std::string(overlaps[static_cast<int>(v.overlap)]) + (v.mask == MaskKind::prefix ? " p" : " b");
}

template <typename Visit>
void for_each_draw(const char* test, const Visit& visit) {
  test::for_each_draw(test, sim::forward_variants(), visit);
}

TEST(ForwardDraws, HaveEveryFeatureForEveryKindOfKernel) {
  Coverage coverage;
  for_each_draw("EqualsTheOracleUnderEveryPolicy", [&](const ForwardVariant& v, std::uint64_t seed) {
    const ForwardCase c = test::draw_case(v, seed);
    test::count_mask(coverage, kind_of(v), {c.mask, c.q_len, c.k_len, v.mask == MaskKind::band});
    count_lengths(coverage, kind_of(v), v, c);
    count_options(coverage, kind_of(v), v, c);
    if (v.is_8_bit()) count_eight_bit(coverage, kind_of(v), c);
  });
  for_each_draw("PackedHeadsEqualTheOracleUnderEveryPolicy",
                [&](const ForwardVariant& v, std::uint64_t seed) {
                  const ForwardCase c = test::draw_packed_case(v, seed);
                  count_packs(coverage, kind_of(v), v, c);
                  coverage.count(kind_of(v), "packed, mask causal", c.mask.right == 0 && c.q_len > 1);
                  if (v.mask == MaskKind::band)
                    coverage.count(kind_of(v), "packed, window that bites",
                                   test::MaskEffect(c.mask, c.q_len, c.k_len).hides_earlier);
                });
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

TEST(ForwardDraws, AreRarelyEmpty) {
  int drawn = 0, empty = 0;
  for_each_draw("EqualsTheOracleUnderEveryPolicy", [&](const ForwardVariant& v, std::uint64_t seed) {
    ++drawn;
    empty += test::draw_case(v, seed).q_len == 0 ? 1 : 0;
  });
  EXPECT_LE(10 * empty, drawn);
}

}  // namespace
}  // namespace tandem
