// What comes ahead of the forward of variable lengths, as the host decides it.
#include <bit>
#include <limits>
#include <string>

#include "core/integers.h"
#include "core/workspace.h"
#include "forward/listed_tile.h"
#include "forward/plan.h"
#include "hw/operand.h"

namespace tandem::forward {
namespace {

std::int64_t row_chunks(const core::ForwardProblem& problem) { return problem.head_dim() / 8; }

/// Warps of all tokens of a tensor, which has so many rows of the head dim in each.
std::int64_t warps_of(const core::ForwardProblem& problem, const core::Tensor& tensor, std::int64_t rows) {
  const std::int64_t pieces = core::ceil_div(rows * row_chunks(problem), AppendVariant::piece_chunks());
  return tensor.shape[0] * tensor.shape[1] * pieces;
}

TokenRows token_rows(const core::ForwardProblem& problem, const core::Tensor& tensor, std::int64_t rows) {
  const std::int64_t warps = warps_of(problem, tensor, rows), tokens = tensor.shape[0] * tensor.shape[1];
  if (warps == 0) return {};
  return {core::Divisor(static_cast<int>(tensor.shape[1])), core::Divisor(static_cast<int>(warps / tokens)),
          static_cast<int>(warps)};
}

std::int64_t query_warps(const core::ForwardProblem& p) {
  return p.varlen.rotates() ? warps_of(p, p.q, p.q_heads()) : 0;
}
std::int64_t added_warps(const core::ForwardProblem& p) {
  return p.varlen.appends() ? warps_of(p, p.varlen.k_new, 2 * p.kv_heads()) : 0;
}

}  // namespace

CacheArguments cache_arguments(const core::ForwardProblem& problem) {
  const core::Varlen& varlen = problem.varlen;
  return {varlen.cu_seqlens_k_new, varlen.leftpad_k, varlen.batch_index,
          varlen.appends() ? static_cast<int>(varlen.k_new.shape[1]) : 0,
          static_cast<int>(problem.k.shape[0])};
}

core::ForwardProblem with_rotated_queries(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                          void* workspace) {
  core::ForwardProblem known = problem;
  if (!problem.varlen.rotates()) return known;
  const std::int64_t d = problem.head_dim(), token = problem.q_heads() * d;
  known.q.data = workspace == nullptr
                     ? nullptr
                     : static_cast<std::byte*>(workspace) + core::part_bytes(list_bytes(problem, variant));
  known.q.stride[0] = problem.q.shape[1] * token, known.q.stride[1] = token, known.q.stride[2] = d;
  return known;
}

std::size_t workspace_bytes(const core::ForwardProblem& problem) {
  const ForwardVariant* variant = choose_variant(problem);
  if (variant == nullptr || !problem.varlen.given) return 0;
  const std::size_t list = list_bytes(problem, *variant);
  if (!problem.varlen.rotates()) return list;
  const core::Tensor& q = problem.q;
  const auto elements = static_cast<std::size_t>(q.shape[0] * q.shape[1] * q.shape[2] * q.shape[3]);
  return core::part_bytes(list) + elements * sizeof(std::uint16_t);
}

launch::Record<AppendFamily> make_append_record(const core::ForwardProblem& problem,
                                                const ForwardVariant& variant, void* workspace,
                                                const FewArguments& few) {
  const auto operand = hw::operand_of(problem.dtype());
  std::int64_t warps = query_warps(problem) + added_warps(problem);
  if (warps == 0) return {{operand}, 0, {}};
  if (few.most_queries > 0) warps += core::ceil_div(problem.varlen.sequences, hw::warp_size);
  launch::Record<AppendFamily> record{
      {operand}, static_cast<int>(core::ceil_div(warps, AppendVariant::warps())), {}};
  const core::Varlen& varlen = problem.varlen;
  AppendArguments& args = record.arguments;
  args.varlen = make_arguments(problem, variant, 1).varlen;
  args.cache = cache_arguments(problem);
  args.q = core::TensorView::of(problem.q);
  if (varlen.rotates()) {
    args.rotated_q = core::TensorView::of(with_rotated_queries(problem, variant, workspace).q);
    args.queries = token_rows(problem, problem.q, problem.q_heads());
  }
  args.k_cache = core::TensorView::of(problem.k);
  args.v_cache = core::TensorView::of(problem.v);
  if (varlen.appends()) {
    args.k_new = core::TensorView::of(varlen.k_new);
    args.v_new = core::TensorView::of(varlen.v_new);
    args.added = token_rows(problem, varlen.k_new, 2 * problem.kv_heads());
  }
  args.rotary = core::RotaryView::of(varlen.rotary);
  args.q_heads = static_cast<int>(problem.q_heads());
  args.kv_heads = static_cast<int>(problem.kv_heads());
  args.row_chunks = core::Divisor(static_cast<int>(row_chunks(problem)));
  args.few = few;
  return record;
}

core::Status check_appended(const core::ForwardProblem& problem) {
  const core::Varlen& varlen = problem.varlen;
  if (varlen.appends() && problem.value_dim() != problem.head_dim())
    return {TANDEM_UNSUPPORTED, "v.shape[3] (head dim) is " + std::to_string(problem.value_dim()) +
                                    " and q.shape[3] " + std::to_string(problem.head_dim()) +
                                    "; the Hopper backend appends where they are equal (varlen.k_new)"};
  if (varlen.appends())
    for (auto [name, tensor] : {std::pair{"varlen.k_new", &varlen.k_new}, {"varlen.v_new", &varlen.v_new}})
      if (core::Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  if (core::Status s = hw::check_rotary("varlen.rotary", varlen.rotary); !s.ok()) return s;
  if (query_warps(problem) + added_warps(problem) > std::numeric_limits<int>::max() / 2)
    return {TANDEM_UNSUPPORTED,
            "q and varlen.k_new have too many elements to rotate and append in one call; "
            "split the batch"};
  return {};
}

}  // namespace tandem::forward
