// The Hopper backward of variable lengths: every compiled variant against the oracle of each sequence, the
// same bits alone and in any batch, graphs that read lengths anew.
#include <gtest/gtest.h>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu/device_backward.h"
#include "tests/support/varlen_backward_case.h"

namespace tandem::test {
namespace {

using backward::BackwardVariant;

/// Copies of all cells of a problem's tensors and of its lengths, and a workspace that holds NaN.
class DeviceVarlenBackward {
 public:
  DeviceVarlenBackward(const VarlenBackwardTensors& host, const backward::Choice& choice)
      : tensors_(host),
        cu_seqlens_q_(std::as_bytes(std::span(host.cu_seqlens_q))),
        cu_seqlens_k_(std::as_bytes(std::span(host.cu_seqlens_k))),
        seqused_k_(std::as_bytes(std::span(host.seqused_k))),
        workspace_(poisoned_memory(backward::workspace_bytes(host.problem(), choice))),
        problem_(tensors_.problem_of(host)),
        choice_(choice) {
    const auto put = [](const std::int32_t*& pointer, const DeviceMemory& words) {
      if (pointer != nullptr) pointer = reinterpret_cast<const std::int32_t*>(words.data());
    };
    put(problem_.varlen.cu_seqlens_q, cu_seqlens_q_);
    put(problem_.varlen.cu_seqlens_k, cu_seqlens_k_);
    put(problem_.varlen.seqused_k, seqused_k_);
  }

  void run(cudaStream_t stream = nullptr) const { run_backward(problem_, choice_, workspace_, stream); }
  void read_outputs(VarlenBackwardTensors& host) const { tensors_.read_outputs(host); }
  /// Packed sequences get other lengths, and the outputs NaN again.
  void restart(const VarlenBackwardTensors& host) {
    cu_seqlens_q_.write(std::as_bytes(std::span(host.cu_seqlens_q)));
    cu_seqlens_k_.write(std::as_bytes(std::span(host.cu_seqlens_k)));
    tensors_.write(host);
  }

 private:
  DeviceGradients tensors_;
  DeviceMemory cu_seqlens_q_, cu_seqlens_k_, seqused_k_, workspace_;
  core::BackwardProblem problem_;
  backward::Choice choice_;
};

/// "" if all is right.
std::string failure_of_case(const VarlenBackwardCase& c, const backward::Choice& choice) {
  VarlenBackwardTensors tensors(c);
  const VarlenBackwardExpected expected(tensors);
  const DeviceVarlenBackward device(tensors, choice);
  device.run();
  device.read_outputs(tensors);
  const std::string failure = failure_of(tensors, expected);
  std::ostringstream out;
  if (!failure.empty()) out << c << ": " << failure;
  return out.str();
}

class EveryVarlenBackwardVariant : public HopperBackward,
                                   public testing::WithParamInterface<BackwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Built, EveryVarlenBackwardVariant,
                         testing::ValuesIn(backward::all_variants(backward::Lengths::varlen)),
                         backward_variant_name);

/// Another one: --gtest_random_seed.
VarlenBackwardCase case_for(const BackwardVariant& variant, int number) {
  const std::uint64_t seed =
      static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1 + static_cast<std::uint64_t>(number);
  VarlenBackwardCase c = random_varlen_backward_case(
      seed, variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16, 300, true);
  ForwardCase& f = c.each.forward;
  f.head_dim = variant.head_dim - (seed % 4 == 0 ? 8 : 0);
  f.softcap = variant.softcap ? 5.f : 0.f;
  f.q_heads = f.q_heads / f.kv_heads, f.kv_heads = 1;  // cheap enough for the oracle on the CPU
  return c;
}

TEST_P(EveryVarlenBackwardVariant, DrawnBatchesMatchTheOracle) {
  EXPECT_EQ(failures_among(6,
                           [](int i) {
                             const VarlenBackwardCase c = case_for(GetParam(), i);
                             return failure_of_case(c, backward::choice_with(GetParam()));
                           }),
            "");
}

VarlenBackwardCase packed_case(std::int64_t head_dim, std::vector<std::int64_t> rows) {
  VarlenBackwardCase c;
  c.each.forward.q_heads = 4, c.each.forward.kv_heads = 2, c.each.forward.head_dim = head_dim;
  c.each.forward.mask = core::Mask::causal();
  c.q_rows = c.k_rows = std::move(rows);
  return c;
}

TEST_F(HopperBackward, AReplayedGraphOfVariableLengthsReadsThemAnew) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    VarlenBackwardTensors first(packed_case(head_dim, {300, 0, 77, 523}));
    DeviceVarlenBackward device(first, backward::choose(first.problem()));
    const Stream stream;
    const Graph graph(stream, [&](cudaStream_t s) { device.run(s); });
    for (const std::vector<std::int64_t>& rows :
         {std::vector<std::int64_t>{300, 0, 77, 523}, {1, 640, 258, 1}, {900, 0, 0, 0}}) {
      VarlenBackwardTensors tensors(packed_case(head_dim, rows));
      device.restart(tensors);
      graph.replay();
      device.read_outputs(tensors);
      EXPECT_EQ(failure_of(tensors, VarlenBackwardExpected(tensors)), "") << "head dim " << head_dim;
    }
  }
}

TEST_F(HopperBackward, SequencesOfABatchHaveTheBitsOfCallsOfTheirOwnUnderLoad) {
  constexpr int runs = 200;
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    VarlenBackwardTensors batch(packed_case(head_dim, {700, 1, 300, 129, 900}));
    const DeviceVarlenBackward device(batch, backward::choose(batch.problem())),
        load(batch, backward::choose(batch.problem()));
    const Stream stream, other;
    device.run(stream.get());
    stream.wait();
    device.read_outputs(batch);
    int different = 0;
    for (int i = 1; i < runs; ++i) {
      if (i % 3 != 0) load.run(other.get());
      device.run(stream.get());
      stream.wait();
      VarlenBackwardTensors result(batch);
      device.read_outputs(result);
      different += !same_bytes(result.dq, batch.dq) || !same_bytes(result.dk, batch.dk) ||
                   !same_bytes(result.dv, batch.dv);
    }
    EXPECT_EQ(different, 0) << "of " << runs << " runs at head dim " << head_dim;
    for (std::size_t i = 0; i < batch.alone.size(); ++i) {
      BackwardTensors& own = batch.alone[i];
      backward::Choice choice = backward::choose(own.problem());
      choice.splits = 1;
      const DeviceBackward alone(own, choice);
      alone.run();
      alone.read_outputs(own);
      EXPECT_TRUE(has_gradients(batch, i, own)) << "sequence " << i << ", head dim " << head_dim;
    }
  }
}

}  // namespace
}  // namespace tandem::test
