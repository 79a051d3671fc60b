#include "api/hopper_mixed.h"

#include <algorithm>

#include "api/checks.h"
#include "core/listed_queries.h"
#include "core/remembered.h"
#include "core/workspace.h"
#include "decode/cost.h"
#include "decode/few_queries.h"
#include "decode/plan.h"
#include "forward/cost.h"
#include "forward/plan.h"

namespace tandem::api {
namespace {

using core::ForwardProblem;

/// Whether decode's kernels know all that the problem has.
bool decode_knows(const ForwardProblem& p) {
  const bool has_keys = p.k_len() > 0 && p.k.shape[0] > 0 && p.k.shape[1] > 0 && p.kv_heads() > 0;
  return p.is_free() && has_keys && p.varlen.given && p.varlen.split_keys == 0 && p.mask.chunk == 0 &&
         !p.slopes.given() && p.tree == nullptr && !p.blocks.given() && p.value_dim() == p.head_dim() &&
         !core::is_8_bit(p.dtype()) && p.dtype() != TANDEM_FP32;
}

/// Whether some sequence may have few queries. Packed keys are those of prompts: where prompts may be among
/// them, all are taken for prompts, so that these calls pay for no other kernel. Not where a sequence's
/// kernel may not depend on whether there are.
bool some_may_be_few(const ForwardProblem& p, std::int64_t few) {
  if (p.varlen.sequences == 0 || p.q_len() == 0 || p.q_heads() == 0) return false;
  const bool may_be_longer = p.q_len() > few;
  const bool all_are_prompts = p.varlen.cu_seqlens_k != nullptr && !p.varlen.keeps_bits();
  return !may_be_longer || (p.varlen.cu_seqlens_q != nullptr && !all_are_prompts);
}

/// Of a call whose sequences all have few queries: whether it is a decoding step, whose kernels find these
/// for themselves: the keys of each lie in an entry of its own, or in pages.
bool is_step(const ForwardProblem& p) {
  const core::Varlen& varlen = p.varlen;
  const std::int64_t room = p.k.shape[1] * (varlen.page_table == nullptr ? 1 : varlen.pages_per_sequence);
  const bool is_packed = varlen.cu_seqlens_q != nullptr;
  if (!is_packed && p.k_len() != room) return false;  // kernels of such queries know no other bound
  return varlen.cu_seqlens_k == nullptr && varlen.leftpad_k == nullptr && varlen.batch_index == nullptr;
}

/// Whether something has to be appended or rotated ahead of the others.
bool has_something_ahead(const ForwardProblem& p) {
  const core::Tensor& added = p.varlen.k_new;
  return p.varlen.rotates() || (p.varlen.appends() && added.shape[0] * added.shape[1] > 0);
}
/// Whether all that the call runs is a step's.
bool is_step_alone(const ForwardProblem& p, const FewQueries& few) {
  return few.is_all() && !has_something_ahead(p);
}

std::optional<FewQueries> served(const core::DecodeProblem& step) {
  if (!decode::supported(step).ok()) return std::nullopt;
  return FewQueries{step, decode::choose_variant(step)};
}

/// Bytes of the list of sequences of few queries; a step without one has their lengths there.
std::size_t few_list_bytes(const ForwardProblem& problem) {
  return static_cast<std::size_t>(core::listed_words(problem.varlen.sequences)) * sizeof(std::int32_t);
}

/// Where the parts of the workspace begin.
struct Layout {
  std::size_t few, step, bytes;

  Layout(const ForwardProblem& problem, const FewQueries& few_queries)
      : few(core::part_bytes(forward::workspace_bytes(problem))),
        step(few + core::part_bytes(few_list_bytes(problem))),
        bytes(step + decode::workspace_bytes(few_queries.step, *few_queries.variant)) {}
};

/// The same of a plan; of a call that is a step there are only counters.
struct PlanLayout {
  std::size_t few = 0, counters = 0, bytes;

  PlanLayout(const ForwardProblem& problem, const FewQueries& few_queries) {
    if (few_queries.has_tiles()) few = core::part_bytes(forward::plan_bytes(problem));
    if (!few_queries.is_all()) counters = few + core::part_bytes(few_list_bytes(problem));
    bytes = counters + decode::counter_bytes;
  }
};

/// For which calls the lists are: besides the tiles', for those with as many few queries.
std::uint32_t key_of_lists(const ForwardProblem& problem, const FewQueries& few) {
  const std::uint32_t of_tiles = forward::key_of_list(problem, *forward::choose_variant(problem));
  return static_cast<std::uint32_t>(
      core::mixed(of_tiles, static_cast<std::uint64_t>(few.step.listed.most_queries)));
}

/// What the kernels ahead write for the others: in the call's plan, or in its workspace.
struct Lists {
  void* tiles;
  std::int32_t* few;
  std::uint32_t* counters;

  static Lists of(const ForwardProblem& problem, const FewQueries& few_queries, void* workspace) {
    if (problem.plan != nullptr) {
      const PlanLayout layout(problem, few_queries);
      return at(problem.plan, layout.few, layout.counters);
    }
    if (is_step_alone(problem, few_queries)) return at(workspace, 0, 0);
    const Layout layout(problem, few_queries);
    return at(workspace, layout.few, layout.step);
  }

 private:
  static Lists at(void* memory, std::size_t few, std::size_t counters) {
    auto* bytes = static_cast<std::byte*>(memory);
    return {memory, reinterpret_cast<std::int32_t*>(bytes + few),
            reinterpret_cast<std::uint32_t*>(bytes + counters)};
  }
};

/// What the device has to know to share the chip between them.
forward::ChipShare share_of(const FewQueries& few, const launch::Record<decode::Family>& step,
                            const launch::Record<forward::Family>& forward, int sm_count) {
  const forward::TileCost tile = forward::tile_cost(forward.variant);
  const decode::CostBeside listed = decode::cost_beside(few.step, *few.variant);
  return {.multiprocessors = sm_count,
          .team_blocks = step.arguments.teams.team_blocks.value(),
          .resident = forward.variant.resident(),
          .forward_blocks = forward.blocks,
          .tile_us = static_cast<float>(tile.tile_us),
          .key_us = static_cast<float>(tile.key_us),
          .listed_us = static_cast<float>(listed.sequence_us),
          .listed_key_us = static_cast<float>(listed.key_us),
          .speed_of_few = static_cast<float>(listed.speed_of_few)};
}

}  // namespace

std::optional<FewQueries> few_queries_of(const ForwardProblem& p) {
  const std::int64_t few = core::few_queries(p.group());
  if (!decode_knows(p) || !some_may_be_few(p, few)) return std::nullopt;
  const core::DecodeProblem step = decode::step_over(p);
  const bool alone = p.q_len() <= few;
  if (alone && is_step(p)) {
    core::DecodeProblem own = step;
    own.lengths = p.varlen.seqused_k;
    own.packed = {p.varlen.cu_seqlens_q, p.varlen.sequences, p.q_len(), p.k_len()};
    if (auto found = served(own)) return found;
  }
  core::DecodeProblem listed = step;
  listed.listed = {.given = true,
                   .sequences = p.varlen.sequences,
                   .most_queries = std::min(few, p.q_len()),
                   .most_keys = p.k_len(),
                   .alone = alone};
  return served(listed);
}

std::size_t mixed_workspace_bytes(const ForwardProblem& problem, const FewQueries& few) {
  return is_step_alone(problem, few) ? decode::workspace_bytes(few.step, *few.variant)
                                     : Layout(problem, few).bytes;
}

std::size_t mixed_plan_bytes(const ForwardProblem& problem, const FewQueries& few) {
  return PlanLayout(problem, few).bytes;
}

std::size_t forward_plan_bytes(const ForwardProblem& problem) {
  if (const auto few = few_queries_of(problem)) return mixed_plan_bytes(problem, *few);
  return forward::plan_bytes(problem);
}

core::Status check_forward_plan(const ForwardProblem& problem) {
  if (problem.plan == nullptr) return {};
  return check_plan(tensors_of(problem), core::Region::of(problem.plan, forward_plan_bytes(problem)),
                    core::Role::updated, "tandem_forward_plan");
}

namespace {

/// Of a step without a list behind something else: how many keys each sequence has then.
std::int32_t* lengths_behind(const ForwardProblem& problem, const FewQueries& few, void* workspace) {
  return reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(workspace) + Layout(problem, few).few);
}

/// The step and the forward, which read the lists.
MixedLaunches readers_of(const ForwardProblem& problem, const FewQueries& few, int sm_count,
                         void* workspace) {
  const Lists lists = Lists::of(problem, few, workspace);
  MixedLaunches all{};
  if (is_step_alone(problem, few)) {
    all.step = decode::make_record(few.step, *few.variant, sm_count, workspace);
  } else {
    const forward::ForwardVariant& variant = *forward::choose_variant(problem);
    const ForwardProblem rotated = forward::with_rotated_queries(problem, variant, workspace);
    core::DecodeProblem step = few.step;
    step.q = rotated.q;
    if (few.is_all()) step.lengths = lengths_behind(problem, few, workspace);
    step.listed.list = lists.few, step.listed.key = key_of_lists(problem, few);
    all.step = decode::make_record(step, *few.variant, sm_count,
                                   static_cast<std::byte*>(workspace) + Layout(problem, few).step);
    if (few.has_tiles()) all.forward = forward::make_record(rotated, variant, sm_count, lists.tiles);
    all.forward.arguments.varlen.beside_step = true;
    all.forward.arguments.varlen.list_key = step.listed.key;
  }
  all.step.arguments.counters = lists.counters;
  all.combine = decode::make_combine_record(all.step);
  return all;
}

/// What the kernel that lists has to know of the sequences of few queries, and of who reads the lists.
forward::FewArguments listed(const FewQueries& few, const Lists& lists, const MixedLaunches& readers,
                             int sm_count) {
  return {lists.few,
          static_cast<int>(few.step.listed.most_queries),
          lists.counters,
          decode::most_counters,
          readers.step.blocks,
          few.has_tiles() ? share_of(few, readers.step, readers.forward, sm_count) : forward::ChipShare{},
          /*lengths=*/nullptr};
}

launch::Record<forward::ListFamily> lister_of(const ForwardProblem& problem, const Lists& lists,
                                              const forward::FewArguments& few, int sm_count,
                                              std::uint32_t key) {
  auto record =
      forward::make_list_record(problem, *forward::choose_variant(problem), sm_count, lists.tiles, few);
  record.arguments.forward.varlen.list_key = key;
  return record;
}

}  // namespace

MixedLaunches launches_of(const ForwardProblem& problem, const FewQueries& few, int sm_count,
                          void* workspace) {
  MixedLaunches all = readers_of(problem, few, sm_count, workspace);
  const bool has_plan = problem.plan != nullptr, clears = !has_plan && decode::counts_parts(all.step);
  if (is_step_alone(problem, few)) {
    if (clears) all.clear = decode::make_clear_record(workspace);
    return all;
  }
  const forward::ForwardVariant& variant = *forward::choose_variant(problem);
  const Lists lists = Lists::of(problem, few, workspace);
  forward::FewArguments own = listed(few, lists, all, sm_count);
  if (few.is_all()) {
    own.most_queries = static_cast<int>(problem.q_len());
    own.lengths = lengths_behind(problem, few, workspace);
    own.counter_count = clears ? decode::most_counters : 0;
    all.append = forward::make_append_record(problem, variant, workspace, own);
    return all;
  }
  // Where there are no tiles, the kernel that appends lists besides.
  const bool append_lists = !has_plan && !few.has_tiles();
  all.append =
      forward::make_append_record(problem, variant, workspace, append_lists ? own : forward::FewArguments{});
  all.append.arguments.varlen.list_key = all.step.arguments.listed_key;
  // Blocks that begin while a grid ahead ends would share the multiprocessors that are free by then.
  if (has_plan && few.has_tiles() && all.append.blocks == 0) all.step.starts_early = false;
  if (!has_plan && !(append_lists && all.append.blocks > 0))
    all.list = lister_of(problem, lists, own, sm_count, all.step.arguments.listed_key);
  return all;
}

PlanLaunches planning_launches_of(const ForwardProblem& given, const FewQueries& few, int sm_count,
                                  void* plan) {
  ForwardProblem problem = given;
  problem.plan = plan;
  const Lists lists = Lists::of(problem, few, nullptr);
  PlanLaunches all{};
  if (few.is_all()) {
    all.clear = decode::make_clear_record(lists.counters);
  } else {
    const MixedLaunches readers = readers_of(problem, few, sm_count, plan);  // which nobody follows
    all.list = lister_of(problem, lists, listed(few, lists, readers, sm_count), sm_count,
                         readers.step.arguments.listed_key);
  }
  return all;
}

core::TensorList memory_of_mixed(const ForwardProblem& problem, const FewQueries& few, void* workspace) {
  core::TensorList list = tensors_of(problem);
  list.add_array("workspace", core::Role::updated,
                 core::Region::of(workspace, mixed_workspace_bytes(problem, few)));
  if (problem.plan != nullptr)
    list.add_array("plan", core::Role::updated,
                   core::Region::of(problem.plan, mixed_plan_bytes(problem, few)));
  return list;
}

}  // namespace tandem::api
