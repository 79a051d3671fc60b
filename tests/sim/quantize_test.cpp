// The quantising kernels on the software Hopper: random tensors, all policies, to the bit what the CPU
// writes; and what the kernels take.
//
// TANDEM_SIM_RUNS sets how many tensors are drawn; TANDEM_SIM_SEED replays a single one.
#include "cpu/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/sim/quantize_sim.h"
#include "quantize/plan.h"
#include "tests/sim/runs.h"
#include "tests/support/quantize_case.h"

namespace tandem {
namespace {

using test::QuantizeCase;
using test::QuantizeTensors;

struct Quantisation {
  QuantizeCase setup;

  void check(const sim::Machine& machine) const {
    QuantizeTensors expected(setup), t(setup);
    cpu::quantize(expected.problem());
    ASSERT_TRUE(quantize::supported(t.problem()).ok()) << quantize::supported(t.problem()).message();
    const hw::sim::Report report = sim::simulate_quantize(t.problem(), machine);
    ASSERT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(test::quantize_failure(t, expected), "");
  }
};

std::ostream& operator<<(std::ostream& out, const Quantisation& own) { return out << own.setup; }

class EveryQuantisation : public testing::TestWithParam<quantize::QuantizeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, EveryQuantisation, testing::ValuesIn(quantize::all_variants()),
                         test::test_name<quantize::QuantizeVariant>);

TEST_P(EveryQuantisation, IsTheCpus) {
  test::for_each_run("sim_quantize_test --gtest_filter=Variants/EveryQuantisation", 1,
                     [](std::uint64_t seed) {
                       const QuantizeCase c = test::random_quantize_case(GetParam(), seed);
                       EXPECT_EQ(quantize::make_record(QuantizeTensors(c).problem(), 1).variant, GetParam());
                       return Quantisation{c};
                     });
}

// Zeros behind the last token keep no sign from the rotation.
TEST(QuantizeOnSim, TheTailOfRotatedColumnsIsZero) {
  Quantisation{{.length = 122, .head_dim = 128, .by_column = true, .hadamard = true, .out = {.row_gap = 16}}}
      .check({});
}

TEST(QuantizeOnSim, RowsAreTurnedByTheirPositionsAheadOfHadamard) {
  for (const bool interleaved : {false, true})
    Quantisation{{.batch = 2,
                  .length = 250,
                  .head_dim = 128,
                  .to = TANDEM_INT8,
                  .hadamard = true,
                  .out = {.row_gap = 16},
                  .rotary_dim = 96,
                  .interleaved = interleaved,
                  .positions_given = true}}
        .check({});
}

TEST(QuantizeOnHopper, NamesWhatTheKernelCannotDo) {
  const auto message_of = [](QuantizeCase c) {
    return quantize::supported(QuantizeTensors(c).problem()).message();
  };
  using testing::HasSubstr;
  const QuantizeCase base{.length = 300, .heads = 2, .scale = {true, 128, 2}, .out = {.row_gap = 16}};
  EXPECT_EQ(message_of(base), "");
  QuantizeCase c = base;
  c.dtype = TANDEM_FP32;
  EXPECT_THAT(message_of(c), HasSubstr("x.dtype is fp32"));
  c = base, c.head_dim = 96;
  EXPECT_THAT(message_of(c), HasSubstr("head dim) is 96"));
  c = base, c.scale.block = 64;
  EXPECT_THAT(message_of(c), HasSubstr("block is 64"));
  c = base, c.scale.block = 256;
  EXPECT_THAT(message_of(c), HasSubstr("scale has shape [1, 2, 2, 1]; the Hopper backend finds a scale for"));
  c = base, c.scale.heads = 1;
  EXPECT_THAT(message_of(c), HasSubstr("scale has shape [1, 3, 1, 1]"));
  c.scale_given = true;
  EXPECT_EQ(message_of(c), "");
  c = base, c.best_scale = true;
  EXPECT_THAT(
      message_of(c),
      HasSubstr("block is 128; the Hopper backend finds the best scale of each token; pass block = 1"));
  c.scale = {true, 0, 2};
  EXPECT_THAT(message_of(c), HasSubstr("scale has shape [1, 1, 2, 1]; the Hopper backend finds a scale for"));
  c.scale = {true, 1, 2};
  EXPECT_EQ(message_of(c), "");
  c.scale.heads = 1;
  EXPECT_THAT(message_of(c), HasSubstr("head and block of 1 token;"));
  c = base, c.scale.block = 1;
  EXPECT_THAT(message_of(c), HasSubstr("block is 1; the Hopper backend takes multiples of 128"));
  c = base, c.x.row_gap = 4;
  EXPECT_THAT(message_of(c), HasSubstr("x.stride"));
  c = base, c.out.row_gap = 8;
  EXPECT_THAT(message_of(c), HasSubstr("out.stride"));
}

}  // namespace
}  // namespace tandem
