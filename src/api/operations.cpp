#include "api/operations.h"

#include <type_traits>

#include "api/validate.h"
#include "cpu/backward.h"
#include "cpu/decode.h"
#include "cpu/forward.h"
#include "cpu/forward_eight_bit.h"
#include "cpu/merge.h"
#include "cpu/quantize.h"
#include "cpu/varlen.h"

namespace tandem::api {
namespace {

using core::BackwardProblem;
using core::DecodeProblem;
using core::ForwardProblem;
using core::MergeProblem;
using core::QuantizeProblem;
using core::Status;

/// Calls a function of the CPU backend, with the workspace or without.
template <auto function, typename Problem>
void call(const Problem& problem, void* workspace) {
  if constexpr (std::is_invocable_v<decltype(function), const Problem&, void*>) {
    function(problem, workspace);
  } else {
    function(problem);
  }
}

/// Such a function as a Backend's `run`.
template <auto function, typename Problem>
Status on_host(const Problem& problem, void* workspace, void* /*stream*/) {
  call<function>(problem, workspace);
  return {};
}

/// Calls run(its problem) for one sequence after the other: so a sequence's result is that of a call of its
/// own. New keys come first. Allocates nothing: what it needs is in `memory`.
template <typename Run>
Status sequence_by_sequence(const ForwardProblem& problem, cpu::SequenceMemory& memory, const Run& run) {
  cpu::append(problem);
  for (std::int64_t i = 0; i < problem.varlen.sequences; ++i)
    run(cpu::SequenceProblem(problem, i, memory).problem());
  return {};
}

Status forward_by_reference(const ForwardProblem& problem, void* /*workspace*/, void* /*stream*/) {
  if (!problem.varlen.given) {
    cpu::reference_forward(problem);
    return {};
  }
  cpu::SequenceMemory memory(problem, cpu::RotatedQueries::in_fp32);
  cpu::ReferenceMemory own(problem, memory.most_keys());
  return sequence_by_sequence(problem, memory,
                              [&own](const ForwardProblem& one) { cpu::reference_forward(one, own); });
}

void forward_of_one_length(const ForwardProblem& problem, void* workspace) {
  core::is_8_bit(problem.dtype()) ? cpu::forward_eight_bit(problem, workspace)
                                  : cpu::forward(problem, workspace);
}

Status forward_on_cpu(const ForwardProblem& problem, void* workspace, void* stream) {
  if (!problem.varlen.given) return on_host<forward_of_one_length>(problem, workspace, stream);
  cpu::SequenceMemory memory(problem);
  return sequence_by_sequence(
      problem, memory, [workspace](const ForwardProblem& one) { forward_of_one_length(one, workspace); });
}

std::size_t forward_workspace(const ForwardProblem& problem) {
  return core::is_8_bit(problem.dtype()) ? cpu::forward_eight_bit_workspace(problem)
                                         : cpu::forward_workspace(problem);
}

}  // namespace

constinit const Operation<tandem_forward_args, ForwardProblem> forward_operation = {
    .validate = validate,
    .writes_nothing =
        [](const ForwardProblem& p) {
          return p.batch() == 0 || (p.q_len() == 0 && !p.varlen.appends()) || p.q_heads() == 0;
        },
    .workspace = {"workspace", "workspace_bytes", "tandem_forward_workspace"},
    .plan = {"plan", "plan_bytes", "tandem_forward_plan_size"},
    .reference = {.run = forward_by_reference},
    .cpu = {.workspace = forward_workspace, .run = forward_on_cpu},
    .on_hopper = &Hopper::forward};

// Without queries, or heads of them, there are still dk and dv to write, without keys dq, and dsinks even
// without a batch. Validation leaves no query heads only where there are no others.
constinit const Operation<tandem_backward_args, BackwardProblem> backward_operation = {
    .validate = validate_backward,
    .writes_nothing =
        [](const BackwardProblem& p) {
          const bool empty = p.batch() == 0 || (p.q_len() == 0 && p.k_len() == 0);
          return p.q_heads() == 0 || (empty && p.dsinks == nullptr);
        },
    .workspace = {"workspace", "workspace_bytes", "tandem_backward_workspace"},
    .reference = {.run = on_host<cpu::reference_backward>},
    .cpu = {.workspace = cpu::backward_workspace, .run = on_host<cpu::backward>},
    .on_hopper = &Hopper::backward};

constinit const Operation<tandem_decode_args, DecodeProblem> decode_operation = {
    .validate = validate_decode,
    .writes_nothing = [](const DecodeProblem& p) { return p.batch() == 0 || p.q_heads() == 0; },
    .workspace = {"workspace", "workspace_bytes", "tandem_decode_workspace"},
    .plan = {"plan", "plan_bytes", "tandem_decode_plan_size"},
    .reference = {.run = on_host<cpu::reference_decode>},
    .cpu = {.workspace = cpu::decode_workspace, .run = on_host<cpu::decode>},
    .on_hopper = &Hopper::decode};

constinit const Operation<tandem_merge_args, MergeProblem> merge_operation = {
    .validate = [](const tandem_merge_args* args, bool,
                   MergeProblem* problem) { return validate_merge(args, problem); },
    .writes_nothing = [](const MergeProblem& p) { return p.rows() == 0; },
    .reference = {.run = on_host<cpu::reference_merge>},
    .cpu = {.run = on_host<cpu::merge>},
    .on_hopper = &Hopper::merge};

// Of its definition there is nothing to approximate: the oracle is the same.
constinit const Operation<tandem_quantize_args, QuantizeProblem> quantize_operation = {
    .validate = [](const tandem_quantize_args* args, bool,
                   QuantizeProblem* problem) { return validate_quantize(args, problem); },
    .writes_nothing =
        [](const QuantizeProblem& p) { return p.batch() == 0 || p.length() == 0 || p.heads() == 0; },
    .reference = {.run = on_host<cpu::quantize>},
    .cpu = {.run = on_host<cpu::quantize>},
    .on_hopper = &Hopper::quantize};

}  // namespace tandem::api
