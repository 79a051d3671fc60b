// The quantising kernels on the chip: what they write is what the CPU writes, to the bit.
#include "cpu/quantize.h"

#include <gtest/gtest.h>
#include <span>
#include <string>

#include "quantize/variant.h"
#include "tests/gpu/device.h"
#include "tests/support/quantize_case.h"

namespace tandem::test {
namespace {

class HopperQuantize : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_no_hopper();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  /// Quantises copies of all cells, guards included, and brings back what was written.
  static void run(QuantizeTensors& t, cudaStream_t stream) {
    const DeviceMemory x(t.x.storage()), out(t.out.storage()), scale(t.scale.storage()), cos(t.cos.storage()),
        sin(t.sin.storage()), shift(t.shift.storage()), k_shift(t.k_shift.storage()),
        dots(t.q_dot_k_shift.storage()),
        positions(std::as_bytes(std::span<const std::int32_t>(t.first_positions)));
    core::QuantizeProblem problem =
        t.problem(t.x.view_at(x.data()), t.out.view_at(out.data()), t.scale.view_at(scale.data()));
    if (problem.rotary.cos != nullptr) {
      problem.rotary.cos = t.cos.view_at(cos.data()).data;
      problem.rotary.sin = t.sin.view_at(sin.data()).data;
    }
    if (problem.shift.given()) problem.shift.values = t.shift.view_at(shift.data());
    if (problem.k_shift.given()) {
      problem.k_shift.values = t.k_shift.view_at(k_shift.data());
      problem.q_dot_k_shift = t.q_dot_k_shift.view_at(dots.data());
    }
    if (problem.first_positions != nullptr)
      problem.first_positions = reinterpret_cast<const std::int32_t*>(positions.data());
    tandem_rotary rotary;
    const tandem_quantize_args args = to_c(problem, &rotary);
    ASSERT_EQ(tandem_quantize(&args, stream), TANDEM_OK) << tandem_last_error();
    out.read(t.out.storage());
    scale.read(t.scale.storage());
    dots.read(t.q_dot_k_shift.storage());
  }

  static void expect_as_on_the_cpu(const QuantizeCase& c, cudaStream_t stream) {
    QuantizeTensors expected(c), t(c);
    cpu::quantize(expected.problem());
    run(t, stream);
    ASSERT_EQ(quantize_failure(t, expected), "") << c;
  }
};

TEST_F(HopperQuantize, RandomTensorsAreTheCpus) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  const Stream stream;
  for (const quantize::QuantizeVariant& variant : quantize::all_variants())
    for (std::uint64_t i = 0; i < 20; ++i)
      expect_as_on_the_cpu(random_quantize_case(variant, first + i), stream.get());
}

TEST_F(HopperQuantize, LongTensorsOfManyHeadsAreTheCpus) {
  for (const bool by_column : {false, true})
    expect_as_on_the_cpu({.batch = 2,
                          .length = 5000,
                          .heads = 16,
                          .head_dim = 128,
                          .by_column = by_column,
                          .scale = {true, 128, 16},
                          .hadamard = !by_column,
                          .out = {.row_gap = 16}},  // TMA's rows are multiples of 16 bytes
                         nullptr);
}

TEST_F(HopperQuantize, LongTensorsHaveTheBestScaleOfEachToken) {
  expect_as_on_the_cpu({.batch = 2,
                        .length = 5000,
                        .heads = 16,
                        .head_dim = 128,
                        .scale = {true, 1, 16},
                        .hadamard = true,
                        .best_scale = true,
                        .amplitude = 22,
                        .out = {.row_gap = 16}},
                       nullptr);
}

}  // namespace
}  // namespace tandem::test
