#include "backward/plan.h"

#include <algorithm>
#include <numbers>
#include <string>
#include <vector>

#include "backward/sums.h"
#include "core/dtype.h"

namespace tandem::backward {
namespace {

/// Of the smallest built head dim that serves the problem, the variant of the kind; nullptr if there is none.
const BackwardVariant* find(const core::BackwardProblem& problem, Kernel kernel, DqSums dq_sums) {
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  const auto operand = problem.dtype() == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16;
  int head_dim = 0;
  for (const BackwardVariant& v : all_variants()) {
    if (v.head_dim < problem.head_dim()) continue;
    if (head_dim == 0) head_dim = v.head_dim;
    if (v.head_dim == head_dim && v.operand == operand && v.softcap == (problem.softcap > 0) &&
        v.kernel == kernel && v.dq_sums == dq_sums) {
      return &v;
    }
  }
  return nullptr;
}

Choice choice_of(const BackwardVariant* keys, const BackwardVariant* queries) {
  if (keys == nullptr || queries == nullptr) return {{}, {}, false};
  return {*keys, *queries, true};
}

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

Extent extent_of(const core::BackwardProblem& problem) {
  return {static_cast<int>(problem.q_len()),
          static_cast<int>(problem.k_len()),
          static_cast<int>(problem.q_heads()),
          static_cast<int>(problem.head_dim()),
          static_cast<int>(round_up(problem.q_len(), query_padding)),
          problem.mask.narrowed<std::int32_t>()};
}

TensorView view_of(const core::Tensor& tensor) {
  return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

/// Drops the first `rows` rows.
void drop(core::Tensor& tensor, std::int64_t rows) {
  if (tensor.data != nullptr) {
    tensor.data = static_cast<char*>(tensor.data) +
                  rows * tensor.stride[1] * static_cast<std::int64_t>(core::size_of(tensor.dtype));
  }
  tensor.shape[1] -= rows;
}

/// What L2 (50 MB on an H100 or H200) keeps of what the tiles of a head share, beside all else.
constexpr std::int64_t cached_bytes = std::int64_t{32} << 20;

/// Tiles of a length each, longest first where they differ: causal keys by those that see them.
core::Schedule make_schedule(const core::BackwardProblem& problem, const BackwardVariant& variant,
                             int sm_count) {
  const bool keys = variant.is_of_keys();
  const auto tiles = static_cast<int>(keys ? (problem.k_len() + variant.block_n - 1) / variant.block_n
                                           : (problem.q_len() + variant.block_m - 1) / variant.block_m);
  const auto heads = static_cast<int>(keys ? problem.kv_heads() : problem.q_heads());
  const auto batch = static_cast<int>(problem.batch());
  const bool ramp =
      (problem.mask.right != core::Mask::unlimited) && (problem.mask.left == core::Mask::unlimited);
  if (!ramp) return core::Schedule(tiles, heads, batch, sm_count);
  const std::int64_t rows = keys ? problem.q_len() * problem.group() * 2 : problem.k_len();
  const std::int64_t of_head = std::max<std::int64_t>(1, rows * problem.head_dim() * 2 * 2);
  return core::Schedule::longest_first(tiles, heads, batch, sm_count,
                                       static_cast<int>(std::max<std::int64_t>(1, cached_bytes / of_head)));
}

}  // namespace

Choice choose(const core::BackwardProblem& problem) {
  const BackwardVariant* queries = find(problem, Kernel::queries, DqSums::none);
  if (const BackwardVariant* roles = find(problem, Kernel::keys_in_roles, DqSums::none); roles != nullptr)
    return choice_of(roles, queries);
  return choice_of(
      find(problem, Kernel::keys_pipelined, problem.deterministic ? DqSums::none : DqSums::added), queries);
}

Choice choice_with(const BackwardVariant& variant) {
  Choice choice{variant, variant, true};
  for (const BackwardVariant& other : all_variants()) {
    if (other.operand != variant.operand || other.head_dim != variant.head_dim ||
        other.softcap != variant.softcap || other.dq_sums == DqSums::added) {
      continue;
    }
    if (other.is_of_keys() != variant.is_of_keys())
      (other.is_of_keys() ? choice.keys : choice.queries) = other;
  }
  return choice;
}

const std::vector<BackwardVariant>& all_variants() {
  static const std::vector<BackwardVariant> all = [] {
    std::vector<BackwardVariant> variants;
    for_each_built([&]<int head_dim>() {
      for (const BackwardVariant& variant : built<head_dim>()) variants.push_back(variant);
    });
    return variants;
  }();
  return all;
}

core::Status no_variant(const core::BackwardProblem& problem) {
  return {TANDEM_UNSUPPORTED, std::string("no Hopper kernel of the backward is built for dtype ") +
                                  core::name_of(problem.dtype()) + " with head dim " +
                                  std::to_string(problem.head_dim()) +
                                  "; built are bf16 and fp16 with head dims up to 256"};
}

Cropped crop(const core::BackwardProblem& problem) {
  const std::int64_t q_len = problem.q_len(), k_len = problem.k_len();
  // Limits are not negative: the last query sees the last key, and from the first that sees one on all do.
  const auto hidden = [](std::int64_t length, std::int64_t other, std::int64_t limit) {
    if (other == 0) return length;
    return limit == core::Mask::unlimited ? 0 : std::clamp<std::int64_t>(length - other - limit, 0, length);
  };
  Cropped cropped{problem, hidden(q_len, k_len, problem.mask.right), hidden(k_len, q_len, problem.mask.left)};
  core::BackwardProblem& p = cropped.problem;
  for (core::Tensor* tensor : {&p.q, &p.o, &p.lse, &p.dout, &p.dlse, &p.dq})
    drop(*tensor, cropped.unseeing_queries);
  for (core::Tensor* tensor : {&p.k, &p.v, &p.dk, &p.dv}) drop(*tensor, cropped.unseen_keys);
  return cropped;
}

WorkspaceLayout workspace_layout(const core::BackwardProblem& problem, const Choice& choice) {
  constexpr std::size_t alignment = 256;
  const auto aligned = [](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  const auto rows = static_cast<std::size_t>(problem.batch() * problem.q_heads() *
                                             round_up(problem.q_len(), query_padding));
  const std::size_t statistics = aligned(rows * sizeof(float));
  const std::size_t sums =
      choice.adds_dq() ? rows / part_rows * static_cast<std::size_t>(parts_of_rows(choice.keys.head_dim)) *
                             part_elements * sizeof(float)
                       : 0;
  return {0, statistics, 2 * statistics, 2 * statistics + aligned(sums)};
}

std::int64_t grid_of(const core::BackwardProblem& problem, const BackwardVariant& variant, int sm_count) {
  return make_schedule(problem, variant, sm_count).positions();
}

std::int64_t row_blocks(const core::BackwardProblem& problem) {
  return problem.batch() * problem.q_heads() * round_up(problem.q_len(), query_padding) / part_rows;
}

MapBoxes map_boxes(const BackwardVariant& variant) {
  constexpr int warpgroup_rows = 64;
  return variant.is_of_keys() ? MapBoxes{{variant.block_m}, {warpgroup_rows}}
                              : MapBoxes{{warpgroup_rows}, {variant.block_n}};
}

core::Tensor sums_tensor(const core::BackwardProblem& problem, const BackwardVariant& variant, void* sums) {
  const std::int64_t rows = row_blocks(problem) * parts_of_rows(variant.head_dim) * part_box_rows;
  return {sums, TANDEM_FP32, {1, rows, 1, part_box_columns}, {0, part_box_columns, 0, 1}};
}

BackwardArguments make_arguments(const core::BackwardProblem& problem, const BackwardVariant& variant,
                                 const Statistics& statistics, int sm_count) {
  BackwardArguments args{};
  args.dq = view_of(problem.dq);
  args.dk = view_of(problem.dk);
  args.dv = view_of(problem.dv);
  args.statistics = statistics;
  args.schedule = make_schedule(problem, variant, sm_count);
  args.group = core::Divisor(static_cast<int>(problem.group()));
  args.extent = extent_of(problem);
  args.scale = problem.scale;
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  return args;
}

PrepareArguments make_prepare_arguments(const core::BackwardProblem& problem, const Statistics& statistics,
                                        void* dq_sums) {
  const Extent extent = extent_of(problem);
  return {view_of(problem.o),
          view_of(problem.dout),
          view_of(problem.lse),
          view_of(problem.dlse),
          statistics,
          dq_sums,
          core::Divisor(extent.padded_q_len / part_rows),
          core::Divisor(extent.q_heads),
          extent};
}

FinishArguments make_finish_arguments(const core::BackwardProblem& problem, const float* dq_sums) {
  const Extent extent = extent_of(problem);
  return {dq_sums,
          view_of(problem.dq),
          core::Divisor(extent.padded_q_len / part_rows),
          core::Divisor(extent.q_heads),
          extent,
          problem.scale};
}

ClearArguments make_clear_arguments(const core::Tensor& tensor, std::int64_t rows) {
  const std::int64_t heads = tensor.shape[2];
  return {view_of(tensor), core::Divisor(static_cast<int>(std::max<std::int64_t>(heads, 1))),
          core::Divisor(static_cast<int>(std::max<std::int64_t>(rows, 1))),
          static_cast<int>(tensor.shape[0] * rows * heads), static_cast<int>(tensor.shape[3])};
}

int clear_blocks(const ClearArguments& args) {
  constexpr int warps = 4;
  return (args.count + warps - 1) / warps;
}

}  // namespace tandem::backward
