// The merge kernels on the software Hopper: random merges, all policies, against the oracle; and what the
// kernel takes.
//
// TANDEM_SIM_RUNS sets how many merges are drawn; TANDEM_SIM_SEED replays a single one.
#include "cpu/merge.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "apps/sim/merge_sim.h"
#include "merge/plan.h"
#include "tests/sim/runs.h"
#include "tests/support/merge_case.h"

namespace tandem {
namespace {

using test::HostTensor;
using test::MergeCase;
using test::MergeTensors;

struct Merge {
  MergeCase setup;

  void check(const sim::Machine& machine) const {
    MergeTensors t(setup);
    const cpu::ReferenceValues reference = cpu::reference_merge_values(t.problem());
    const hw::sim::Report report = sim::simulate_merge(t.problem(), machine);
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(test::merge_failure(t, {reference.o, reference.lse}), "");
  }
};

std::ostream& operator<<(std::ostream& out, const Merge& merge) { return out << merge.setup; }

class EveryMerge : public testing::TestWithParam<merge::MergeVariant> {};
INSTANTIATE_TEST_SUITE_P(Variants, EveryMerge, testing::ValuesIn(merge::all_variants()),
                         test::test_name<merge::MergeVariant>);

TEST_P(EveryMerge, OfRandomPartsMatchesTheOracle) {
  test::for_each_run("sim_merge_test --gtest_filter=Variants/EveryMerge", 1, [](std::uint64_t seed) {
    MergeCase c = test::random_merge_case(seed);
    c.in = GetParam().in, c.out = GetParam().out;
    return Merge{c};
  });
}

TEST(MergeOnSim, WithoutAnyKeyIsZeroAndMinusInfinity) {
  MergeTensors t({.parts = 3, .length = 4, .heads = 2, .head_dim = 8});
  t.o_parts.poison();
  t.lse_parts.fill(-std::numeric_limits<float>::infinity());
  ASSERT_TRUE(sim::simulate_merge(t.problem(), {}).ok());
  EXPECT_THAT(t.o.values(), testing::Each(0));
  EXPECT_THAT(t.lse.values(), testing::Each(-std::numeric_limits<double>::infinity()));
}

TEST(MergeOnHopper, NamesTheStridesAndSizesThatTheKernelCannotTake) {
  const auto message_of = [](const core::MergeProblem& problem) {
    return std::string(merge::supported(problem).message());
  };
  const MergeTensors t({.in = TANDEM_BF16, .parts = 3, .batch = 2, .length = 4, .heads = 2, .head_dim = 8});
  const core::MergeProblem good = t.problem();
  EXPECT_TRUE(merge::supported(good).ok()) << message_of(good);
  core::MergeProblem p = good;
  p.o_parts.stride[1] += 1;
  EXPECT_THAT(message_of(p), testing::HasSubstr("o_parts.stride[1] is "));
  p = good, p.o_part_stride += 4;
  EXPECT_THAT(message_of(p), testing::HasSubstr("o_part_stride is "));
  p.parts = 1;
  EXPECT_EQ(message_of(p), "") << "nothing is that far from the only part";
  p = good, p.o.data = static_cast<char*>(p.o.data) + 4;
  EXPECT_THAT(message_of(p), testing::HasSubstr("o.data is "));
  p = good, p.o.shape[1] = p.o_parts.shape[1] = std::int64_t{1} << 32;
  EXPECT_THAT(message_of(p), testing::HasSubstr("merge in pieces"));
  p = good, p.parts = std::int64_t{1} << 33;
  EXPECT_THAT(message_of(p), testing::HasSubstr("parts is 8589934592"));
}

}  // namespace
}  // namespace tandem
