#include "forward/plan.h"

#include <algorithm>
#include <cstdint>
#include <numbers>

namespace tandem::forward {
namespace {

std::int64_t query_blocks(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  return (problem.q_len() + variant.block_m - 1) / variant.block_m;
}

OutputView output_view(const core::Tensor& tensor) {
  return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

core::Schedule make_schedule(const core::ForwardProblem& problem, const ForwardVariant& variant, int grid) {
  const auto m_blocks = static_cast<int>(query_blocks(problem, variant));
  const auto heads = static_cast<int>(problem.q_heads()), batch = static_cast<int>(problem.batch());
  const bool ramp = problem.mask.right != core::Mask::unlimited;
  return ramp ? core::Schedule::longest_first(m_blocks, heads, batch, grid)
              : core::Schedule(m_blocks, heads, batch);
}

}  // namespace

const ForwardVariant* choose_variant(const core::ForwardProblem& problem) {
  static constexpr auto table = all_candidates();
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  const auto operand = problem.dtype() == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16;
  const auto mask = problem.mask.is_full() ? MaskKind::full : MaskKind::band;
  const ForwardVariant* chosen = nullptr;
  for (const auto& [variant, min_keys] : table) {
    if (chosen != nullptr && variant.head_dim > chosen->head_dim) break;  // would only pad more
    if (variant.operand == operand && variant.mask == mask && variant.softcap == (problem.softcap > 0) &&
        variant.head_dim >= problem.head_dim() && problem.k_len() >= min_keys) {
      chosen = &variant;
    }
  }
  return chosen;
}

std::int64_t tile_count(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  return query_blocks(problem, variant) * problem.q_heads() * problem.batch();
}

ForwardArguments make_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                int grid) {
  ForwardArguments args{};
  args.o = output_view(problem.o);
  args.lse = output_view(problem.lse);
  args.mask = problem.mask.narrowed<std::int32_t>();
  args.schedule = make_schedule(problem, variant, grid);
  args.q_len = static_cast<int>(problem.q_len());
  args.k_len = static_cast<int>(problem.k_len());
  args.head_dim = static_cast<int>(problem.head_dim());
  args.group = core::Divisor(static_cast<int>(problem.group()));
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  return args;
}

int grid_size(const core::ForwardProblem& problem, const ForwardVariant& variant, int sm_count) {
  return static_cast<int>(std::min<std::int64_t>(tile_count(problem, variant), sm_count));
}

}  // namespace tandem::forward
