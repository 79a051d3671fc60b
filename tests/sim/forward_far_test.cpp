// Offsets beyond 2^31 elements in the forward kernels: the same bits as of tensors that lie close together.
#include "apps/sim/forward_sim.h"
#include "tests/sim/far_tensor.h"
#include "tests/sim/runs.h"
#include "tests/support/forward_case.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::FarTensor;
using test::ForwardTensors;

/// What operand types, overlaps and turns are alike in.
std::vector<ForwardVariant> variants_of_each_shape() {
  std::vector<ForwardVariant> variants = sim::forward_variants();
  std::erase_if(variants, [](const ForwardVariant& v) {
    return v.operand != hw::Operand::bf16 || v.overlap != forward::Overlap::two_stage || v.softcap;
  });
  return variants;
}

class ForwardFarOffsets : public testing::TestWithParam<ForwardVariant> {
 protected:
  static void run(const core::ForwardProblem& problem) {
    const hw::sim::Report report = sim::simulate_forward(problem, GetParam(), {});
    ASSERT_TRUE(report.ok()) << report.text();
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, ForwardFarOffsets, testing::ValuesIn(variants_of_each_shape()),
                         test::test_name<ForwardVariant>);

TEST_P(ForwardFarOffsets, GiveTheSameBits) {
  test::ForwardCase c;
  c.batch = 2, c.q_len = 3, c.k_len = 5, c.kv_heads = 2, c.q_heads = 4, c.head_dim = GetParam().head_dim;
  ForwardTensors expected(c);
  run(expected.problem());
  for (int dim = 0; dim < 3; ++dim) {
    SCOPED_TRACE(testing::Message() << "dimension " << dim);
    ForwardTensors near(c);
    const FarTensor q(near.q, dim), k(near.k, dim), v(near.v, dim), o(near.o, dim), lse(near.lse, dim);
    core::ForwardProblem problem = near.problem();
    problem.q = q.view(), problem.k = k.view(), problem.v = v.view();
    problem.o = o.view(), problem.lse = lse.view();
    run(problem);
    o.copy_to(near.o), lse.copy_to(near.lse);
    EXPECT_TRUE(test::same_bytes(near.o, expected.o));
    EXPECT_TRUE(test::same_bytes(near.lse, expected.lse));
  }
}

}  // namespace
}  // namespace tandem
