// Gradients of variable lengths on the CPU: each sequence's are those of a call of its own.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "cpu/backward.h"
#include "cpu/parallel.h"
#include "tests/cpu/targets.h"
#include "tests/cpu/workspace.h"
#include "tests/support/varlen_backward_case.h"

namespace tandem::test {
namespace {

constexpr tandem_dtype dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};

/// Another one: --gtest_random_seed.
std::uint64_t first_seed() { return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1; }

template <typename Tensors>
void poison_outputs(Tensors& t) {
  for (HostTensor* output : {&t.dq, &t.dk, &t.dv, &t.dsinks}) output->poison();
}

/// Runs the fast backend into poisoned outputs.
template <typename Tensors>
void run(Tensors& t) {
  const core::BackwardProblem problem = t.problem();
  Workspace workspace(cpu::backward_workspace(problem));
  poison_outputs(t);
  cpu::backward(problem, workspace.data());
  EXPECT_TRUE(workspace.guards_intact());
}

template <typename Check>
void for_each_draw(int draws, Check check) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + static_cast<std::uint64_t>(draws); ++seed) {
    VarlenBackwardTensors t(random_varlen_backward_case(seed, dtypes[seed % 3], 150));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(t.setup));
    check(t);
    if (::testing::Test::HasFailure()) return;
  }
}

/// A batch whose second sequence has no query and whose third has no key.
VarlenBackwardCase three_sequences() {
  VarlenBackwardCase c;
  c.each.forward.q_heads = 4, c.each.forward.kv_heads = 2, c.each.forward.mask = core::Mask::causal();
  c.each.sinks = true;
  c.q_rows = {70, 0, 9, 33}, c.k_rows = {40, 12, 0, 130};
  return c;
}

TEST(CpuBackwardOfVariableLengths, DrawnBatchesMatchTheOracleOfEachSequence) {
  for_each_draw(60, [](VarlenBackwardTensors& t) {
    const VarlenBackwardExpected expected(t);
    on_each_target([&] {
      run(t);
      EXPECT_EQ(failure_of(t, expected), "");
    });
  });
}

TEST(CpuBackwardOfVariableLengths, TheReferenceMatchesTheOracleOfEachSequence) {
  for_each_draw(40, [](VarlenBackwardTensors& t) {
    const VarlenBackwardExpected expected(t);
    cpu::reference_backward(t.problem());
    EXPECT_EQ(failure_of(t, expected), "");
    const cpu::ReferenceGradients whole = cpu::reference_gradients(t.problem());
    EXPECT_EQ(whole.dq, expected.reference.dq);
    EXPECT_EQ(whole.dk, expected.reference.dk);
    EXPECT_EQ(whole.dv, expected.reference.dv);
  });
}

TEST(CpuBackwardOfVariableLengths, ASequenceHasTheBitsOfACallOfItsOwn) {
  for_each_draw(20, [](VarlenBackwardTensors& t) {
    run(t);
    for (std::size_t i = 0; i < t.alone.size(); ++i) {
      BackwardTensors& own = t.alone[i];
      run(own);
      EXPECT_TRUE(has_gradients(t, i, own)) << "sequence " << i;
    }
  });
}

TEST(CpuBackwardOfVariableLengths, HaveTheSameBitsForAnyNumberOfThreads) {
  VarlenBackwardTensors t(three_sequences());
  run(t);
  const VarlenBackwardTensors first = t;
  for (const int threads : {1, 3, 5}) {
    cpu::set_thread_count(threads);
    run(t);
    EXPECT_TRUE(same_bytes(t.dq, first.dq) && same_bytes(t.dk, first.dk) && same_bytes(t.dv, first.dv) &&
                same_bytes(t.dsinks, first.dsinks));
  }
  cpu::set_thread_count(0);
}

TEST(CpuBackwardOfVariableLengths, TheWorkspaceDependsOnBoundsAlone) {
  VarlenBackwardTensors t(three_sequences());
  core::BackwardProblem p = t.problem();
  const std::size_t bytes = cpu::backward_workspace(p);
  for (std::int32_t* length : {&t.cu_seqlens_q[1], &t.cu_seqlens_k[2]}) *length = 1'000'000;
  EXPECT_EQ(cpu::backward_workspace(p), bytes);
  p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_k = nullptr;  // nor are they read
  EXPECT_EQ(cpu::backward_workspace(p), bytes);
  p.varlen.sequences = 1000;
  EXPECT_EQ(cpu::backward_workspace(p), bytes);
  p.varlen.max_seqlen_q = 8;
  EXPECT_LT(cpu::backward_workspace(p), bytes);
}

TEST(CpuBackwardOfVariableLengths, NoSequenceNeedsMoreWorkspaceThanTheLongest) {
  for (const std::int64_t heads : {1, 3, 40, 200}) {
    VarlenBackwardCase c;
    c.each.forward.q_heads = c.each.forward.kv_heads = heads, c.each.forward.head_dim = 8;
    core::BackwardProblem p = shapes_of(c.each);
    p.varlen.given = true, p.varlen.sequences = 1;
    std::size_t before = 0;
    for (std::int64_t rows = 0; rows < 20'000; rows += 1 + rows / 7) {
      p.varlen.max_seqlen_q = p.varlen.max_seqlen_k = rows;
      const std::size_t bytes = cpu::backward_workspace(p);
      EXPECT_GE(bytes, before) << heads << " heads, " << rows << " rows";
      before = bytes;
    }
  }
}

TEST(CpuBackwardOfVariableLengths, WrongLengthsLeadNowhereOutOfTheTensors) {
  constexpr std::int32_t far = std::numeric_limits<std::int32_t>::max();
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 30; ++seed) {
    Random random(seed);
    VarlenBackwardCase c = three_sequences();
    c.used = {5, 5, 5, 5};
    VarlenBackwardTensors t(c);
    for (HostTensor* tensor : {&t.q, &t.k, &t.v, &t.o, &t.lse, &t.dout}) tensor->fill(0);
    for (auto* lengths : {&t.cu_seqlens_q, &t.cu_seqlens_k, &t.seqused_k})
      for (std::int32_t& length : *lengths)
        if (random() % 2 == 0)
          length = std::array{-far - 1, -1, far, static_cast<std::int32_t>(random())}[random() % 4];
    run(t);
    for (const HostTensor* output : {&t.dq, &t.dk, &t.dv, &t.dsinks})
      ASSERT_TRUE(output->guards_intact()) << "seed " << seed;
  }
}

TEST(CpuBackwardOfVariableLengths, WithoutSequencesOnlyTheGradientsOfSinksAreWritten) {
  VarlenBackwardCase c = three_sequences();
  c.q_rows = c.k_rows = {};
  VarlenBackwardTensors t(c);
  on_each_target([&] {
    run(t);
    for (const HostTensor* output : {&t.dq, &t.dk, &t.dv}) EXPECT_TRUE(output->untouched());
    for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(t.dsinks.at(0, 0, 0, h), 0);
  });
}

}  // namespace
}  // namespace tandem::test
