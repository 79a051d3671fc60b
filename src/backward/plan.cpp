#include "backward/plan.h"

#include <algorithm>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "backward/sums.h"
#include "core/dtype.h"

namespace tandem::backward {
namespace {

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

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
core::TileScheduler make_schedule(const core::BackwardProblem& problem, const BackwardVariant& variant,
                                  int sm_count) {
  const bool keys = variant.is_of_keys();
  const auto tiles = static_cast<int>(keys ? (problem.k_len() + variant.block_n - 1) / variant.block_n
                                           : (problem.q_len() + variant.block_m - 1) / variant.block_m);
  const auto heads = static_cast<int>(keys ? problem.kv_heads() : problem.q_heads());
  const auto batch = static_cast<int>(problem.batch());
  const bool ramp =
      (problem.mask.right != core::Mask::unlimited) && (problem.mask.left == core::Mask::unlimited);
  if (!ramp) return core::TileScheduler(tiles, heads, batch, sm_count);
  const std::int64_t rows = keys ? problem.q_len() * problem.group() * 2 : problem.k_len();
  const std::int64_t of_head = std::max<std::int64_t>(1, rows * problem.head_dim() * 2 * 2);
  return core::TileScheduler::longest_first(
      tiles, heads, batch, sm_count, static_cast<int>(std::max<std::int64_t>(1, cached_bytes / of_head)));
}

/// Rows of statistics.
std::int64_t padded_rows(const core::BackwardProblem& problem, std::int64_t q_len) {
  return problem.batch() * problem.q_heads() * round_up(q_len, query_padding);
}

/// Blocks of the kernels before and after the products: 64 queries each.
std::int64_t row_blocks(const core::BackwardProblem& problem) {
  return padded_rows(problem, problem.q_len()) / part_rows;
}

/// The sums of dQ as a tensor of fp32 rows of 32 that parts are boxes of.
core::Tensor sums_tensor(const core::BackwardProblem& problem, const BackwardVariant& variant, void* sums) {
  const std::int64_t rows = row_blocks(problem) * parts_of_rows(variant.head_dim) * part_box_rows;
  return {sums, TANDEM_FP32, {1, rows, 1, part_box_columns}, {0, part_box_columns, 0, 1}};
}

/// All arguments but the tensor maps.
BackwardArguments make_arguments(const core::BackwardProblem& problem, const BackwardVariant& variant,
                                 const Statistics& statistics, int sm_count) {
  BackwardArguments args{};
  args.dq = core::TensorView::of(problem.dq);
  args.dk = core::TensorView::of(problem.dk);
  args.dv = core::TensorView::of(problem.dv);
  args.statistics = statistics;
  args.schedule = make_schedule(problem, variant, sm_count);
  args.group = core::Divisor(static_cast<int>(problem.group()));
  args.extent = extent_of(problem);
  args.scale = problem.scale;
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  return args;
}

core::Status no_variant(const core::BackwardProblem& problem) {
  return {TANDEM_UNSUPPORTED, std::string("no Hopper kernel of the backward is built for dtype ") +
                                  core::name_of(problem.dtype()) + " with head dim " +
                                  std::to_string(problem.head_dim()) +
                                  "; built are bf16 and fp16 with head dims up to 256"};
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
  static const std::vector<BackwardVariant> all = launch::variants_of<Family>();
  return all;
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

WorkspaceLayout workspace_layout(const Cropped& cropped, const Choice& choice) {
  constexpr std::size_t alignment = 256;
  const auto aligned = [](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  const core::BackwardProblem& problem = cropped.problem;
  const auto statistics = [&](std::int64_t q_len) {
    return aligned(static_cast<std::size_t>(padded_rows(problem, q_len)) * sizeof(float));
  };
  const std::size_t sums = choice.adds_dq()
                               ? static_cast<std::size_t>(row_blocks(problem)) *
                                     static_cast<std::size_t>(parts_of_rows(choice.keys.head_dim)) *
                                     part_elements * sizeof(float)
                               : 0;
  const std::size_t seeing = statistics(problem.q_len()),
                    unseeing = problem.dsinks == nullptr ? 0 : statistics(cropped.unseeing_queries),
                    behind_sums = 2 * seeing + aligned(sums);
  return {0, seeing, 2 * seeing, behind_sums, behind_sums + unseeing, behind_sums + 2 * unseeing};
}

Call::Call(const core::BackwardProblem& problem, const Choice& choice, int sm_count, void* workspace)
    : whole_(problem),
      cropped_(crop(problem)),
      choice_(choice),
      sm_count_(sm_count),
      layout_(workspace_layout(cropped_, choice)),
      workspace_(workspace) {
  const auto at = [workspace](std::size_t offset) {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) + offset);
  };
  statistics_ = {at(layout_.lse_log2), at(layout_.delta)};
  unseeing_statistics_ = {at(layout_.unseeing_lse_log2), at(layout_.unseeing_delta)};
  dq_sums_ = choice.adds_dq() ? at(layout_.dq_sums) : nullptr;
}

core::Region Call::workspace() const {
  return core::Region::of(workspace_, 1, 1, static_cast<std::int64_t>(layout_.end), 0);
}

Step<PrepareFamily> Call::prepare_rows(const core::BackwardProblem& p, const Statistics& statistics,
                                       float* dq_sums) const {
  const Extent extent = extent_of(p);
  const int blocks = std::max(extent.padded_q_len / part_rows, 1);
  Step<PrepareFamily> step{{{choice_.keys.operand, choice_.keys.head_dim},
                            static_cast<int>(row_blocks(p)),
                            {core::TensorView::of(p.o), core::TensorView::of(p.dout),
                             core::TensorView::of(p.lse), core::TensorView::of(p.dlse), statistics, dq_sums,
                             core::Divisor(blocks), core::Divisor(extent.q_heads), extent}},
                           {}};
  step.memory.add("o", core::Role::input, p.o);
  step.memory.add("dout", core::Role::input, p.dout);
  step.memory.add("lse", core::Role::input, p.lse);
  if (p.dlse.data != nullptr) step.memory.add("dlse", core::Role::input, p.dlse);
  return step;
}

Step<PrepareFamily> Call::prepare() const {
  Step<PrepareFamily> step = prepare_rows(cropped_.problem, statistics_, dq_sums_);
  step.memory.add_array("workspace", core::Role::output, workspace());
  return step;
}

Step<PrepareFamily> Call::prepare_unseeing() const {
  core::BackwardProblem first = whole_;
  first.q.shape[1] = cropped_.unseeing_queries;
  Step<PrepareFamily> step = prepare_rows(first, unseeing_statistics_, nullptr);
  step.memory.add_array("workspace", core::Role::updated, workspace());
  return step;
}

Step<SinksFamily> Call::sinks() const {
  const core::BackwardProblem& p = cropped_.problem;
  const auto rows = [](std::int64_t q_len) { return static_cast<int>(round_up(q_len, query_padding)); };
  const auto heads = static_cast<int>(p.q_heads());
  Step<SinksFamily> step{
      {{},
       heads,
       {statistics_, unseeing_statistics_, rows(p.q_len()), rows(cropped_.unseeing_queries),
        static_cast<int>(p.batch()), heads, p.sinks, p.dsinks}},
      {}};
  const auto of_heads = [heads](const float* data) {
    return core::Region::of(data, sizeof *data, 1, heads, 0);
  };
  step.memory.add_array("workspace", core::Role::input, workspace());
  step.memory.add_array("sinks", core::Role::input, of_heads(p.sinks));
  step.memory.add_array("dsinks", core::Role::output, of_heads(p.dsinks));
  return step;
}

Step<Family> Call::products(const BackwardVariant& variant) const {
  constexpr int warpgroup_rows = 64;
  const core::BackwardProblem& p = cropped_.problem;
  const bool keys = variant.is_of_keys();
  BackwardArguments args = make_arguments(p, variant, statistics_, sm_count_);
  const int positions = args.schedule.positions();
  Step<Family> step{{variant, variant.is_persistent() ? std::min(positions, sm_count_) : positions, args},
                    {}};
  const hw::BoxRows query_rows{keys ? variant.block_m : warpgroup_rows},
      key_rows{keys ? warpgroup_rows : variant.block_n};
  step.record.request({"q", p.q, query_rows, &BackwardArguments::q});
  step.record.request({"dout", p.dout, query_rows, &BackwardArguments::dout});
  step.record.request({"k", p.k, key_rows, &BackwardArguments::k});
  step.record.request({"v", p.v, key_rows, &BackwardArguments::v});
  if (dq_sums_ != nullptr)
    step.record.request(
        {"workspace", sums_tensor(p, variant, dq_sums_), {part_box_rows}, &BackwardArguments::dq_sums});
  step.memory.add("q", core::Role::input, p.q);
  step.memory.add("k", core::Role::input, p.k);
  step.memory.add("v", core::Role::input, p.v);
  step.memory.add("dout", core::Role::input, p.dout);
  step.memory.add_array(
      "workspace", variant.dq_sums == DqSums::added ? core::Role::updated : core::Role::input, workspace());
  if (keys) {
    step.memory.add("dk", core::Role::output, p.dk);
    step.memory.add("dv", core::Role::output, p.dv);
  } else {
    step.memory.add("dq", core::Role::output, p.dq);
  }
  return step;
}

Step<FinishFamily> Call::finish() const {
  const core::BackwardProblem& p = cropped_.problem;
  const Extent extent = extent_of(p);
  Step<FinishFamily> step{
      {{choice_.keys.operand, choice_.keys.head_dim},
       static_cast<int>(row_blocks(p)),
       {dq_sums_, core::TensorView::of(p.dq), core::Divisor(extent.padded_q_len / part_rows),
        core::Divisor(extent.q_heads), extent, p.scale}},
      {}};
  step.memory.add_array("workspace", core::Role::input, workspace());
  step.memory.add("dq", core::Role::output, p.dq);
  return step;
}

Step<ClearFamily> Call::clear(const char* name, const core::Tensor& gradient, std::int64_t rows) const {
  constexpr int warps = 4;
  const std::int64_t heads = gradient.shape[2];
  const auto count = static_cast<int>(gradient.shape[0] * rows * heads);
  Step<ClearFamily> step{
      {{},
       (count + warps - 1) / warps,
       {core::TensorView::of(gradient), core::Divisor(static_cast<int>(std::max<std::int64_t>(heads, 1))),
        core::Divisor(static_cast<int>(std::max<std::int64_t>(rows, 1))), count,
        static_cast<int>(gradient.shape[3])}},
      {}};
  step.memory.add(name, core::Role::updated, gradient);
  return step;
}

core::TensorList memory_of(const core::BackwardProblem& problem, const Choice& choice, void* workspace) {
  core::TensorList list = tensors_of(problem);
  const std::size_t bytes = workspace_layout(crop(problem), choice).end;
  list.add_array("workspace", core::Role::output,
                 core::Region::of(workspace, 1, 1, static_cast<std::int64_t>(bytes), 0));
  return list;
}

core::Status supported(const core::BackwardProblem& problem) {
  const Choice choice = choose(problem);
  if (!choice.found) return no_variant(problem);
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"k", &problem.k},
                              {"v", &problem.v},
                              {"o", &problem.o},
                              {"dout", &problem.dout},
                              {"dq", &problem.dq},
                              {"dk", &problem.dk},
                              {"dv", &problem.dv}}) {
    if (core::Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  const std::int64_t most_rows = max_tiles / (part_box_rows * 2) * part_rows;
  if (problem.batch() * problem.q_heads() * (problem.q_len() + query_padding) >= most_rows ||
      problem.batch() * problem.q_heads() * (problem.k_len() + query_padding) >= most_rows) {
    return {TANDEM_UNSUPPORTED, "batch * heads * (length + 128) exceeds 2^28 rows; split the batch"};
  }
  return {};
}

std::size_t workspace_bytes(const core::BackwardProblem& problem) {
  return workspace_layout(crop(problem), choose(problem)).end;
}

}  // namespace tandem::backward
