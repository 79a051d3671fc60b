// The forward's kernels for variable lengths on the software Hopper: random batches, all policies, against
// the oracle of each sequence.
#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "tests/sim/runs.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using forward::ForwardVariant;
using test::VarlenCase;

VarlenCase draw_case(const ForwardVariant& variant, std::uint64_t seed) {
  test::Random random(seed * 1000 + static_cast<std::uint64_t>(variant.head_dim) + (variant.softcap ? 1 : 0));
  VarlenCase c = test::draw_varlen_case(random, {variant.block_m, variant.block_n});
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  if (variant.mask == forward::MaskKind::prefix) c.mask.left = core::Mask::unlimited;
  if (variant.softcap) c.softcap = 1.f + static_cast<float>(random() % 30);
  return c;
}

struct Problem {
  const ForwardVariant& variant;
  VarlenCase c;

  void check(const sim::Machine& machine) const {
    const test::VarlenTensors tensors(c);
    const hw::sim::Report report = sim::simulate_forward(tensors.problem(), variant, machine);
    ASSERT_TRUE(report.ok()) << report.text();
    const test::VarlenValues values = test::varlen_values(tensors);
    const test::Comparison o = test::compare(values.result.o, values.standard.o, values.reference.o);
    EXPECT_TRUE(o) << "o: " << o;
    EXPECT_TRUE(test::others_untouched(tensors));
    if (!c.lse) return;
    const test::Comparison lse = test::compare(values.result.lse, values.standard.lse, values.reference.lse);
    EXPECT_TRUE(lse) << "lse: " << lse;
  }

  friend std::ostream& operator<<(std::ostream& out, const Problem& problem) { return out << problem.c; }
};

class VarlenOnSim : public testing::TestWithParam<ForwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, VarlenOnSim,
                         testing::ValuesIn(sim::forward_variants(forward::Lengths::varlen)),
                         test::test_name<ForwardVariant>);

TEST_P(VarlenOnSim, EachSequenceEqualsItsOracleUnderEveryPolicy) {
  test::for_each_run("sim_varlen_test --gtest_filter=Variants/VarlenOnSim", 3, [](std::uint64_t seed) {
    return Problem{GetParam(), draw_case(GetParam(), seed)};
  });
}

}  // namespace
}  // namespace tandem
