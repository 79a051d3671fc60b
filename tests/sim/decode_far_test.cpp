// Offsets beyond 2^31 elements in the decode kernels: the same bits as of tensors that lie close together.
#include "apps/sim/decode_sim.h"
#include "decode/plan.h"
#include "tests/sim/far_tensor.h"
#include "tests/sim/runs.h"
#include "tests/sim/workspace.h"
#include "tests/support/decode_case.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::DecodeTensors;
using test::FarTensor;

/// The narrowest of each algorithm and head dim: what row tiles are alike in.
std::vector<DecodeVariant> variants_of_each_algorithm() {
  std::vector<DecodeVariant> variants;
  for (const DecodeVariant& v : sim::decode_variants()) {
    const bool known = std::ranges::any_of(variants, [&](const DecodeVariant& other) {
      return other.algorithm == v.algorithm && other.head_dim == v.head_dim;
    });
    if (!known) variants.push_back(v);
  }
  return variants;
}

class DecodeFarOffsets : public testing::TestWithParam<DecodeVariant> {
 protected:
  void run(const core::DecodeProblem& problem, const DecodeTensors& tensors) {
    const sim::DecodeMemory memory{
        workspace_.of(decode::workspace_bytes(problem, GetParam())), tensors.page_table, {}};
    const hw::sim::Report report = sim::simulate_decode(problem, GetParam(), memory, {});
    ASSERT_TRUE(report.ok()) << report.text();
  }
  void expect_same_bits(const test::DecodeCase& c, int dim) {
    SCOPED_TRACE(testing::Message() << "dimension " << dim << " of " << c);
    DecodeTensors expected(c), near(c);
    run(expected.problem(), expected);
    const FarTensor q(near.q, dim), k(near.k_cache, dim), v(near.v_cache, dim), o(near.o, dim),
        lse(near.lse, dim), k_new(near.k_new, dim), v_new(near.v_new, dim);
    core::DecodeProblem problem = near.problem();
    problem.q = q.view(), problem.k_cache = k.view(), problem.k_new = k_new.view();
    problem.v_cache = c.values_in_keys ? k.view() : v.view();
    problem.v_new = c.values_in_keys ? k_new.view() : v_new.view();
    problem.v_cache.shape[3] = problem.v_new.shape[3] = c.value_columns();
    problem.o = o.view(), problem.lse = lse.view();
    run(problem, near);
    o.copy_to(near.o), lse.copy_to(near.lse), k.copy_to(near.k_cache), v.copy_to(near.v_cache);
    EXPECT_TRUE(test::same_bytes(near.o, expected.o));
    EXPECT_TRUE(test::same_bytes(near.lse, expected.lse));
    EXPECT_TRUE(test::same_bytes(near.k_cache, expected.k_cache));
    EXPECT_TRUE(test::same_bytes(near.v_cache, expected.v_cache));
  }
  test::Workspace workspace_;
};
INSTANTIATE_TEST_SUITE_P(Variants, DecodeFarOffsets, testing::ValuesIn(variants_of_each_algorithm()),
                         test::test_name<DecodeVariant>);

TEST_P(DecodeFarOffsets, GiveTheSameBits) {
  test::DecodeCase c;
  c.dtype = TANDEM_BF16;
  c.head_dim = GetParam().head_dim, c.q_len = 2, c.kv_heads = 2, c.q_heads = 4;
  c.new_len = 2, c.lengths = {3, 130}, c.capacity = 144;
  c.split_size = GetParam().has_fixed_splits() ? 64 : 0;
  c.eight_bit = {.on = GetParam().eight_bit(),
                 .per_token = GetParam().token_scales,
                 .int8 = GetParam().element == decode::Element::int8,
                 .hadamard = GetParam().hadamard};
  c.cache.row_gap = 16;
  if (GetParam().values_in_keys()) test::put_values_into_keys(c, GetParam().value_dim);
  for (const std::int64_t page_size : {0, 16}) {
    c.page_size = page_size;
    for (int dim = 0; dim < 3; ++dim) expect_same_bits(c, dim);
  }
}

}  // namespace
}  // namespace tandem
