#include "api/hopper_decode.h"

#include <algorithm>

#include "api/checks.h"
#include "api/message.h"
#include "api/step_as_forward.h"
#include "decode/plan.h"
#include "forward/plan.h"

namespace tandem::api {
namespace {

using core::DecodeProblem;
using core::ForwardProblem;
using core::Status;

/// Whether values have memory of their own, and other columns than keys.
bool has_values_of_their_own(const DecodeProblem& step) {
  return step.value_dim() != step.head_dim() && !step.values_in_keys() && !step.has_qv();
}

bool has_chunks_slopes_or_tree(const DecodeProblem& step) {
  return step.mask.chunk > 0 || step.slopes.given() || step.tree != nullptr;
}

/// What of a step decode's kernels don't know, as its caller names it; the first of several.
const char* unknown_to_decode(const DecodeProblem& step) {
  if (step.mask.chunk > 0) return "mask.chunk";
  if (step.tree != nullptr) return "tree";
  return step.slopes.given() ? "alibi_slopes" : "cache.v of another head dim";
}

/// The step as decode's kernels would take it.
DecodeProblem without_unknown(const DecodeProblem& step) {
  DecodeProblem known = step;
  known.mask.chunk = 0, known.slopes = {}, known.tree = nullptr;
  if (has_values_of_their_own(step))
    known.v_cache.shape[3] = known.v_new.shape[3] = known.o.shape[3] = step.head_dim();
  return known;
}

/// What decode's kernels take, but not beside what they don't know.
Status check_beside(const DecodeProblem& step) {
  const char* given = unknown_to_decode(step);
  if (step.has_qv())
    return unsupported("qv is given, and ", given, " too; with it the Hopper backend takes q alone");
  if (step.eight_bit())
    return unsupported("cache.k.dtype is ", describe_dtype(step.k_cache.dtype), " and ", given,
                       " is given; with it the Hopper backend takes caches of q's dtype");
  if (step.kernel != TANDEM_DECODE_AUTO)
    return unsupported("study.kernel is ", static_cast<int>(step.kernel), " and ", given,
                       " is given, which the forward's kernels serve; pass TANDEM_DECODE_AUTO");
  if (step.paged() && step.batch_index != nullptr)
    return unsupported("cache.batch_index is given, and cache.page_table and ", given,
                       " too; with these the Hopper backend takes a page table in the order of the batch: "
                       "gather its rows, and pass NULL");
  if (step.split_size > 0 && !has_chunks_slopes_or_tree(step))  // several kernels serve these, by the batch
    return unsupported("split_size is ", step.split_size, " and ", given,
                       " is given; with it the Hopper backend makes no fixed splits: pass 0");
  if (has_values_of_their_own(step) && step.new_len() > 0)
    return unsupported(
        "cache.v.shape[3] (head dim) is ", step.value_dim(), ", cache.k.shape[3] is ", step.head_dim(),
        " and k_new is given; the Hopper backend appends to caches of one head dim, or to keys "
        "that the values lie in");
  constexpr std::int64_t fewest = 16;
  if (step.paged() && step.page_size() < fewest)
    return unsupported("cache.k.shape[1] (page size) is ", step.page_size(), " and ", given,
                       " is given; with it the Hopper backend takes powers of two from ", fewest, " on");
  return {};
}

Status check_forward(const DecodeProblem& step) {
  const ForwardProblem problem = as_forward(step);
  if (forward::choose_variant(problem) != nullptr) return forward::supported(problem);
  const bool wide_values = step.value_dim() > step.head_dim();
  return unsupported(wide_values ? "cache.v" : "q", ".shape[3] (head dim) is ",
                     std::max(step.head_dim(), step.value_dim()), " and ", unknown_to_decode(step),
                     " is given; with it the Hopper backend takes head dims up to ",
                     step.mask.chunk > 0 || step.tree != nullptr ? 192 : 256,
                     ": pass such, or everything in host memory to TANDEM_BACKEND_CPU");
}

}  // namespace

bool goes_as_forward(const DecodeProblem& step) {
  return has_chunks_slopes_or_tree(step) || has_values_of_their_own(step);
}

Status step_supported(const DecodeProblem& step) {
  if (!goes_as_forward(step)) return decode::supported(step);
  // Its checks name tensors as the step's caller does.
  if (Status s = decode::supported(without_unknown(step)); !s.ok()) return s;
  if (Status s = check_beside(step); !s.ok()) return s;
  return check_forward(step);
}

std::size_t step_workspace_bytes(const DecodeProblem& step) {
  if (!goes_as_forward(step)) return decode::workspace_bytes(step);
  return decode::counter_bytes + forward::workspace_bytes(as_forward(step));
}

void* workspace_of_forward(void* workspace) {
  return static_cast<std::byte*>(workspace) + decode::counter_bytes;
}

Status check_step_plan(const DecodeProblem& step) {
  if (step.plan == nullptr || goes_as_forward(step)) return {};
  return check_plan(tensors_of(step), core::Region::of(step.plan, decode::any_plan_bytes), core::Role::input,
                    "tandem_decode_plan");
}

std::size_t step_plan_bytes(const DecodeProblem& step) {
  return goes_as_forward(step) ? 0 : decode::plan_bytes(step);
}

}  // namespace tandem::api
