#include "backward/varlen_plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "backward/list.h"
#include "backward/sums.h"
#include "core/dtype.h"
#include "core/integers.h"
#include "core/workspace.h"
#include "hw/types.h"

namespace tandem::backward {
namespace {

using core::Tensor;

/// Entries of a batch one after another, if they lie so.
bool in_one_entry(const Tensor& tensor) {
  const auto& [batch, rows, heads, columns] = tensor.shape;
  return batch <= 1 || rows <= 1 || heads == 0 || tensor.stride[0] == rows * tensor.stride[1];
}

void put_in_one_entry(Tensor& tensor) {
  if (tensor.shape[1] <= 1) tensor.stride[1] = tensor.stride[0];
  tensor.shape[1] *= tensor.shape[0];
  tensor.shape[0] = 1, tensor.stride[0] = 0;
}

core::BackwardProblem packed(core::BackwardProblem p) {
  for (Tensor* tensor : {&p.q, &p.o, &p.lse, &p.dout, &p.dlse, &p.dq, &p.k, &p.v, &p.dk, &p.dv})
    put_in_one_entry(*tensor);
  return p;
}

std::int64_t rows_of(const Tensor& tensor) { return tensor.shape[0] * tensor.shape[1]; }

/// Whether a section's tiles of keys are a round of the grid, whatever L2 holds: where many heads are in turn
/// (plan.cpp, grouped_order), waits are short, and all sequences together are many rounds.
bool has_rounds(const core::BackwardProblem& p, const Choice& choice) {
  constexpr std::int64_t fewest_rounds = 10;
  return p.group() > few_in_turn && choice.adds_dq() && !waits_long(choice.keys) &&
         rows_of(p.k) * p.kv_heads() >= fewest_rounds * choice.grid * choice.keys.block_n;
}

/// Of visits of all heads at work: so many rows of the other side L2 holds, or a round has.
int cached_rows(const core::BackwardProblem& p, const Choice& choice, bool keys) {
  // Of groups: the longest sequence's few heads wait for one another otherwise.
  constexpr int more_of_groups = 16;
  if (keys && has_rounds(p, choice)) return choice.grid * choice.keys.block_n;
  const std::int64_t visitors = keys ? p.group() * 2 : 1, row = p.head_dim() * 2 * 2;
  return static_cast<int>(choice.cached_bytes * (keys && p.group() > 1 ? more_of_groups : 1) /
                          (visitors * row));
}

/// Of a section, where sections overlap. At head dim 64 the tiles of long sequences wait for one another
/// where two heads are worked on; at head dim 128 L2 does not hold four (docs/performance/backward.md).
int fewest_heads(const Choice& choice) { return waits_long(choice.keys) ? 2 : 1; }

/// Queries of all heads that two sections have at most, padded to whole visits. Tiles of a section begin when
/// all of the one before the last have begun, and so have those that had its places in the ring. Where
/// sections are rounds of the grid, also of the heads whose tiles a round may be in the middle of.
std::int64_t ring_rows(const core::BackwardProblem& p, const Choice& choice) {
  const std::int64_t rows = cached_rows(p, choice, true), longest = std::max<std::int64_t>(p.q_len(), 1),
                     heads = std::min<std::int64_t>(std::max<std::int64_t>(rows, fewest_heads(choice)),
                                                    p.kv_heads());
  const std::int64_t of_section = std::max(rows, longest * fewest_heads(choice)) * p.group() +
                                  heads * p.group() * (choice.keys.block_m - 1);
  const std::int64_t of_round = has_rounds(p, choice) ? (rows + 2 * longest) * p.group() : 0;
  return core::round_up(std::max(2 * of_section, of_round), part_rows);
}

/// Of the next position, of each part, and of its last visit.
std::int64_t counters_of(const VarlenBounds& bounds) { return bounds.parts > 0 ? 1 + 2 * bounds.parts : 0; }

PackedRows packed_rows(const std::int32_t* cu_seqlens, const Tensor& tensor, std::int64_t most) {
  return {cu_seqlens, static_cast<int>(tensor.shape[1]), static_cast<int>(rows_of(tensor)),
          static_cast<int>(most)};
}

}  // namespace

VarlenBounds bounds_of(const core::BackwardProblem& p, const Choice& choice) {
  const std::int64_t sequences = p.varlen.sequences, queries = rows_of(p.q), keys = rows_of(p.k);
  VarlenBounds bounds{};
  bounds.sequences = sequences;
  if (sequences == 0 || p.kv_heads() == 0) return bounds;
  bounds.seeing_rows = core::round_up(queries + sequences * (query_padding - 1), query_padding);
  bounds.unseeing_blocks = most_blocks(queries, sequences, part_rows);
  bounds.unseen_blocks = most_blocks(keys, sequences, part_rows);
  if (queries == 0 || keys == 0) return bounds;
  bounds.key_tiles = most_blocks(keys, sequences, choice.keys.block_n) * p.kv_heads();
  if (choice.adds_dq()) {
    const std::int64_t parts_of_row = parts_of_rows(choice.keys.head_dim);
    bounds.parts = p.q_heads() * (bounds.seeing_rows / part_rows) * parts_of_row;
    bounds.places = std::min(bounds.parts, ring_rows(p, choice) / part_rows * parts_of_row);
  } else {
    bounds.query_tiles = most_blocks(queries, sequences, choice.queries.block_m) * p.q_heads();
  }
  return bounds;
}

VarlenLayout varlen_layout(const core::BackwardProblem& p, const Choice& choice) {
  const VarlenBounds bounds = bounds_of(p, choice);
  std::size_t end = 0;
  const auto part = [&end](std::int64_t elements, std::size_t size) {
    const std::size_t begin = end;
    end += core::part_bytes(static_cast<std::size_t>(elements) * size);
    return begin;
  };
  const auto list = [&part](std::int64_t entries) {
    return part((entries + 1) * list_words, sizeof(std::int32_t));
  };
  const std::int64_t seeing = p.q_heads() * bounds.seeing_rows,
                     unseeing = p.dsinks == nullptr ? 0 : p.q_heads() * bounds.unseeing_blocks * part_rows;
  VarlenLayout layout{};
  layout.lse_log2 = part(seeing, sizeof(float));
  layout.delta = part(seeing, sizeof(float));
  layout.dq_sums = part(bounds.places * part_elements, sizeof(float));
  layout.counters = part(counters_of(bounds), sizeof(std::uint32_t));
  layout.unseeing_lse_log2 = part(unseeing, sizeof(float));
  layout.unseeing_delta = part(unseeing, sizeof(float));
  layout.key_tiles = list(bounds.key_tiles);
  layout.query_tiles = list(bounds.query_tiles);
  layout.seeing = list(bounds.seeing_rows / part_rows);
  layout.unseeing = list(bounds.unseeing_blocks);
  layout.unseen = list(bounds.unseen_blocks);
  layout.end = end;
  return layout;
}

VarlenCall::VarlenCall(const core::BackwardProblem& problem, const Choice& choice, int sm_count,
                       void* workspace)
    : problem_(packed(problem)),
      choice_(choice),
      sm_count_(sm_count),
      bounds_(bounds_of(problem, choice)),
      layout_(varlen_layout(problem, choice)),
      workspace_(workspace) {
  lists_ = {
      at<std::int32_t>(layout_.key_tiles), choice.adds_dq() ? nullptr : at<std::int32_t>(layout_.query_tiles),
      at<std::int32_t>(layout_.seeing), at<std::int32_t>(layout_.unseeing), at<std::int32_t>(layout_.unseen)};
  // What the lists need of the tensors as they were given.
  entries_q_ = packed_rows(problem.varlen.cu_seqlens_q, problem.q, problem.varlen.max_seqlen_q);
  entries_k_ = packed_rows(problem.varlen.cu_seqlens_k, problem.k, problem.varlen.max_seqlen_k);
}

core::Region VarlenCall::workspace() const { return core::Region::of(workspace_, layout_.end); }

Statistics VarlenCall::statistics_at(std::size_t lse_log2, std::size_t delta) const {
  return {at<float>(lse_log2), at<float>(delta)};
}

Step<ListFamily> VarlenCall::list() const {
  const core::BackwardProblem& p = problem_;
  const core::Varlen& varlen = p.varlen;
  constexpr int never = std::numeric_limits<int>::max();
  ListArguments args{};
  args.lists = lists_;
  args.sequences = static_cast<int>(bounds_.sequences);
  args.q = entries_q_, args.k = entries_k_;
  args.seqused_k = varlen.seqused_k;
  args.mask = p.mask.narrowed<std::int32_t>();
  args.key_tiles = {static_cast<int>(p.kv_heads()),
                    choice_.keys.block_n,
                    cached_rows(p, choice_, true),
                    may_overlap(p, choice_.keys) ? SectionOverlap::fewest_rounds * sm_count_ : never,
                    choice_.keys.head_dim == 128 ? SectionOverlap::many_tiles : never,
                    fewest_heads(choice_)};
  args.query_tiles = {static_cast<int>(p.q_heads()),
                      choice_.queries.block_m,
                      cached_rows(p, choice_, false),
                      never,
                      never,
                      1};
  args.seeing_blocks = static_cast<int>(bounds_.seeing_rows / part_rows);
  args.q_heads = static_cast<int>(p.q_heads());
  args.visit_rows = choice_.keys.block_m;
  args.parts_of_visit = choice_.keys.block_m / part_rows * parts_of_rows(choice_.keys.head_dim);
  Step<ListFamily> step{{{}, p.kv_heads() == 0 ? 0 : args.sequences, args}, {}};
  core::add_lengths(step.memory, varlen);
  step.memory.add_array("workspace", core::Role::output, workspace());
  return step;
}

Step<PrepareFamily> VarlenCall::prepare() const {
  const core::BackwardProblem& p = problem_;
  PrepareArguments args = prepare_arguments(p, statistics_at(layout_.lse_log2, layout_.delta));
  args.counters = at<std::uint32_t>(layout_.counters);
  args.counter_count = static_cast<int>(counters_of(bounds_));
  const std::int64_t row_blocks = bounds_.seeing_rows / part_rows;
  args.row_blocks = core::Divisor(static_cast<int>(std::max<std::int64_t>(row_blocks, 1)));
  args.q_heads = core::Divisor(args.extent.q_heads);
  args.extent.padded_q_len = static_cast<int>(bounds_.seeing_rows);
  args.lists = lists_;
  args.dq = core::TensorView::of(p.dq);
  args.dk = core::TensorView::of(p.dk), args.dv = core::TensorView::of(p.dv);
  if (p.dsinks != nullptr) args.unseeing = statistics_at(layout_.unseeing_lse_log2, layout_.unseeing_delta);
  args.unseeing_blocks = static_cast<int>(bounds_.unseeing_blocks);
  args.kv_heads = static_cast<int>(p.kv_heads());
  const std::int64_t blocks = row_blocks * p.q_heads() + bounds_.unseeing_blocks + bounds_.unseen_blocks;
  Step<PrepareFamily> step = prepare_step(p, {choice_.keys.operand, choice_.keys.head_dim, Lengths::varlen},
                                          static_cast<int>(blocks), args);
  step.memory.add("dq", core::Role::output, p.dq);
  step.memory.add("dk", core::Role::output, p.dk);
  step.memory.add("dv", core::Role::output, p.dv);
  step.memory.add_array("workspace", core::Role::updated, workspace());
  return step;
}

Step<Family> VarlenCall::products(const BackwardVariant& variant) const {
  const core::BackwardProblem& p = problem_;
  BackwardArguments args = make_arguments(p, statistics_at(layout_.lse_log2, layout_.delta));
  args.extent.padded_q_len = static_cast<int>(bounds_.seeing_rows);
  args.lists = lists_;
  args.dk = {core::TensorView::of(p.dk), nullptr}, args.dv = {core::TensorView::of(p.dv), nullptr};
  args.splits = {core::Divisor(1), static_cast<int>(p.kv_heads()), 0};
  args.group = core::Divisor(static_cast<int>(p.group()));
  if (variant.adds_dq()) {
    args.ring = {at<float>(layout_.dq_sums),
                 at<std::uint32_t>(layout_.counters) + 1,
                 at<std::uint32_t>(layout_.counters),
                 {},
                 core::Divisor(static_cast<int>(bounds_.places)),
                 static_cast<int>(bounds_.parts)};
  }
  const auto tiles = static_cast<int>(variant.is_of_keys() ? bounds_.key_tiles : bounds_.query_tiles);
  return products_step(p,
                       {variant, args, blocks_for(variant, tiles, sm_count_), bounds_.places, workspace()});
}

Step<SinksFamily> VarlenCall::sinks() const {
  return sinks_step(problem_,
                    {statistics_at(layout_.lse_log2, layout_.delta),
                     statistics_at(layout_.unseeing_lse_log2, layout_.unseeing_delta), bounds_.seeing_rows,
                     bounds_.unseeing_blocks * part_rows, 1},
                    workspace());
}

core::Status varlen_supported(const core::BackwardProblem& p) {
  for (auto [name, tensor] : {std::pair{"q", &p.q},
                              {"o", &p.o},
                              {"lse", &p.lse},
                              {"dout", &p.dout},
                              {"dlse", &p.dlse},
                              {"dq", &p.dq},
                              {"k", &p.k},
                              {"v", &p.v},
                              {"dk", &p.dk},
                              {"dv", &p.dv}}) {
    if (!in_one_entry(*tensor))
      return {TANDEM_UNSUPPORTED,
              std::string(name) + ".stride[0] is " + std::to_string(tensor->stride[0]) +
                  "; with varlen the Hopper backend takes entries that follow one another, here " +
                  std::to_string(tensor->shape[1] * tensor->stride[1])};
    const auto row_bytes = tensor->stride[1] * static_cast<std::int64_t>(core::size_of(tensor->dtype));
    if (tensor->shape[1] > 1 && row_bytes >= static_cast<std::int64_t>(hw::PackedOrigin::wrapping_bytes))
      return {TANDEM_UNSUPPORTED, std::string(name) + ".stride[1] is " + std::to_string(tensor->stride[1]) +
                                      "; with varlen the Hopper backend takes less than 2^34 bytes"};
  }
  const VarlenBounds bounds = bounds_of(p, choose(p));
  return check_rows(p.q_heads() * bounds.seeing_rows, p.q_heads() * bounds.unseen_blocks * part_rows);
}

}  // namespace tandem::backward
