// What the problems that the backward's tests draw have: no feature of the interface may be missing.
#include "tests/sim/backward_draws.h"

#include <algorithm>
#include <iostream>

#include "tests/sim/coverage.h"

namespace tandem {
namespace {

using backward::BackwardVariant;
using test::BackwardCase;
using test::Coverage;

std::string kind_of(const BackwardVariant& v) {
  static constexpr const char* kernels[] = {"serial", "pipelined", "in roles", "queries"};
  return kernels[static_cast<int>(v.kernel)];
}

void count_lengths(Coverage& coverage, const BackwardVariant& v, const test::ForwardCase& c) {
  const std::string kind = kind_of(v);
  test::count_edges(coverage, kind, "queries", c.q_len, v.block_m);
  test::count_edges(coverage, kind, "keys", c.k_len, v.block_n);
  // Where nothing is left to compute, all kinds are alike.
  coverage.count("all", "no key", c.k_len == 0 && c.q_len > 0);
  coverage.count("all", "no query", c.q_len == 0 && c.k_len > 0);
  const bool of_keys = v.is_of_keys();  // a tile is of keys, and walks blocks of queries
  coverage.count(kind, "several tiles", of_keys ? c.k_len > v.block_n : c.q_len > v.block_m);
  coverage.count(
      kind, "more blocks than stages",
      of_keys ? c.q_len > v.block_m * std::max(v.stages, v.q_stages) : c.k_len > v.block_n * v.stages);
  bool unseen = false;
  for (std::int64_t key = 0; key < c.k_len; ++key) {
    const auto queries = c.mask.transposed().visible_keys(key, c.k_len, c.q_len);
    unseen |= queries.begin >= queries.end;
  }
  coverage.count(kind, "keys that nobody sees", c.q_len > 0 && unseen);
}

void count_options(Coverage& coverage, const std::string& kind, const BackwardVariant& v,
                   const BackwardCase& c) {
  const test::ForwardCase& f = c.forward;
  for (const std::int64_t batch : {1, 2})
    coverage.count(kind, "batch " + std::to_string(batch), f.batch == batch);
  test::count_heads(coverage, kind, {f.q_heads, f.kv_heads, f.head_dim, v.head_dim}, {1, 2, 3});
  coverage.count(kind, "a gradient of lse", c.dlse);
  coverage.count(kind, "no gradient of lse", !c.dlse);
  coverage.count(kind, "gradients of sinks", c.sinks);
  coverage.count(kind, "no sinks", !c.sinks);
  coverage.count(kind, "gradients of sinks and of lse", c.sinks && c.dlse);
  coverage.count(kind, "scale given", f.scale > 0);
  coverage.count(kind, "gaps between rows", f.q.row_gap > 0 && f.k.row_gap > 0 && c.dout.row_gap > 0);
  coverage.count(kind, "gaps between rows of gradients", c.dq.row_gap > 0 && c.dk.row_gap > 0);
}

TEST(BackwardDraws, HaveEveryFeatureForEveryKindOfKernel) {
  Coverage coverage;
  const auto count = [&](const BackwardVariant& v, std::uint64_t seed) {
    const BackwardCase c = test::draw_case(v, seed);
    test::count_mask(coverage, kind_of(v), {c.forward.mask, c.forward.q_len, c.forward.k_len, true, false});
    test::count_mask(coverage, "all", {c.forward.mask, c.forward.q_len, c.forward.k_len});
    count_lengths(coverage, v, c.forward);
    count_options(coverage, kind_of(v), v, c);
  };
  test::for_each_draw("EqualsTheOracleUnderEveryPolicy", backward::all_variants(), count);
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

}  // namespace
}  // namespace tandem
