#include "api/hopper_prefix.h"

#include "api/step_as_forward.h"
#include "core/listed_queries.h"
#include "core/workspace.h"
#include "decode/plan.h"
#include "forward/plan.h"
#include "merge/plan.h"

namespace tandem::api {
namespace {

using core::DecodeProblem;
using decode::SharedMemory;
using decode::SharedStep;

constexpr std::int64_t parts = 2;

bool has_something_ahead(const DecodeProblem& p) { return p.new_len() > 0 || p.rotary.cos != nullptr; }

/// Whether the kernel that appends and rotates ahead of the forward does so for this step.
bool can_append(const DecodeProblem& p) {
  if (!has_something_ahead(p)) return true;
  if (p.paged() && p.batch_index != nullptr) return false;
  const core::ForwardProblem problem = as_forward(p);
  return forward::choose_variant(problem) != nullptr && forward::supported(problem).ok();
}

std::int64_t rows_of(const DecodeProblem& p) { return p.batch() * p.q_len() * p.q_heads(); }

/// Where the parts of the workspace lie. The step's comes first: it begins with the counters.
struct Layout {
  std::size_t list, notes, o, lse, ahead, bytes;

  Layout(const DecodeProblem& p, const SharedStep& shared)
      : list(core::part_bytes(decode::workspace_bytes(shared.step, *shared.variant))),
        notes(list + core::part_bytes(words(core::listed_words(shared.step.listed.sequences)))),
        o(notes + core::part_bytes(words(decode::prefix_notes(p.prefixes.groups)))),
        lse(o + core::part_bytes(words(parts * rows_of(p) * p.value_dim()))),
        ahead(lse + core::part_bytes(words(parts * rows_of(p)))),
        bytes(ahead + (p.rotary.cos != nullptr ? forward::workspace_bytes(as_forward(p)) : 0)) {}

  SharedMemory memory(std::byte* workspace) const {
    return {reinterpret_cast<std::int32_t*>(workspace + list),
            reinterpret_cast<std::int32_t*>(workspace + notes), reinterpret_cast<float*>(workspace + o),
            reinterpret_cast<float*>(workspace + lse)};
  }

 private:
  static std::size_t words(std::int64_t count) { return static_cast<std::size_t>(count) * 4; }
};

core::MergeProblem merge_of(const DecodeProblem& p, const SharedMemory& memory) {
  const std::int64_t b = p.batch(), s = p.q_len(), h = p.q_heads(), d = p.value_dim();
  core::MergeProblem merge{};
  merge.parts = parts;
  merge.o_parts = core::contiguous(memory.o, TANDEM_FP32, {b, s, h, d});
  merge.lse_parts = core::contiguous(memory.lse, TANDEM_FP32, {b, s, h, 1});
  merge.o_part_stride = rows_of(p) * d, merge.lse_part_stride = rows_of(p);
  merge.o = p.o, merge.lse = p.lse;
  return merge;
}

}  // namespace

std::optional<SharedStep> shared_prefixes_of(const DecodeProblem& p) {
  const auto shared = decode::shared_step_of(p);
  const bool has_stride = p.rotary.cos != nullptr || decode::token_stride(p.q).has_value();
  if (!shared.has_value() || !has_stride || !can_append(p) || !merge::supported(merge_of(p, {})).ok())
    return std::nullopt;
  return shared;
}

std::size_t shared_workspace_bytes(const DecodeProblem& problem, const SharedStep& shared) {
  return Layout(problem, shared).bytes;
}

SharedLaunches launches_of(const DecodeProblem& problem, const SharedStep& shared, int sm_count,
                           void* workspace) {
  const Layout layout(problem, shared);
  auto* bytes = static_cast<std::byte*>(workspace);
  const SharedMemory memory = layout.memory(bytes);
  DecodeProblem ready = problem;
  SharedLaunches all{};
  if (has_something_ahead(problem)) {
    const core::ForwardProblem ahead = as_forward(problem);
    const forward::ForwardVariant& variant = *forward::choose_variant(ahead);
    all.append = forward::make_append_record(ahead, variant, bytes + layout.ahead, {});
    ready.q = forward::with_rotated_queries(ahead, variant, bytes + layout.ahead).q;
  }
  all.step = decode::make_record(decode::step_over(shared, ready, memory), *shared.variant, sm_count, bytes);
  all.list = decode::make_prefix_list_record(problem, shared, memory, all.step.blocks);
  all.combine = decode::make_combine_record(all.step);
  all.merge = merge::make_record(merge_of(problem, memory));
  return all;
}

core::TensorList memory_of_shared(const DecodeProblem& problem, const SharedStep& shared, void* workspace) {
  core::TensorList list = tensors_of(problem);
  list.add_array("workspace", core::Role::updated,
                 core::Region::of(workspace, shared_workspace_bytes(problem, shared)));
  return list;
}

}  // namespace tandem::api
