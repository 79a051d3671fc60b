// How the Hopper backend serves variable lengths where sequences may have few queries: these run decode's
// body, which splits their keys over the chip, the others the forward's, in one call. Which sequence goes
// which way is found on the device. In plain C++.
#pragma once

#include <cstddef>
#include <optional>

#include "core/decode_problem.h"
#include "core/problem.h"
#include "core/status.h"
#include "decode/table.h"
#include "forward/table.h"
#include "launch/record.h"

namespace tandem::api {

/// The sequences of few queries, as a step.
struct FewQueries {
  core::DecodeProblem step;  ///< its list, where it has one, is not known yet
  const decode::DecodeVariant* variant;

  /// Whether no sequence has more queries, and the step finds them without a list; where something is
  /// appended ahead of it, by lengths that the kernel which appends writes.
  bool is_all() const { return !step.listed.given; }
  /// Whether some sequence may have more.
  bool has_tiles() const { return step.listed.given && !step.listed.alone; }
};

/// Of a call that the forward serves (forward/plan.h): nullopt where all of it is the forward's.
std::optional<FewQueries> few_queries_of(const core::ForwardProblem& problem);

/// Bytes of workspace of such a call: the forward's, the list, the step's; of a step alone only those.
std::size_t mixed_workspace_bytes(const core::ForwardProblem& problem, const FewQueries& few);
/// Of its plan: the lists, and the step's counters.
std::size_t mixed_plan_bytes(const core::ForwardProblem& problem, const FewQueries& few);

/// The same of any call, with sequences of few queries or without; 0 where lengths don't vary.
std::size_t forward_plan_bytes(const core::ForwardProblem& problem);
/// What is wrong with the memory of the plan that such a call brings, if it does.
core::Status check_forward_plan(const core::ForwardProblem& problem);

/// Its launches in their order. Those that there is nothing to do for have no blocks: with a plan that is so
/// of what clears and what lists. The step and the forward run side by side.
struct MixedLaunches {
  launch::Record<decode::ClearFamily> clear;  ///< where there is no list, whose kernel does it
  launch::Record<forward::AppendFamily> append;
  launch::Record<forward::ListFamily> list;
  launch::Record<decode::Family> step;
  launch::Record<forward::Family> forward;
  launch::Record<decode::CombineFamily> combine;
};
MixedLaunches launches_of(const core::ForwardProblem& problem, const FewQueries& few, int sm_count,
                          void* workspace);

/// Those that make its plan.
struct PlanLaunches {
  launch::Record<decode::ClearFamily> clear;
  launch::Record<forward::ListFamily> list;
};
PlanLaunches planning_launches_of(const core::ForwardProblem& problem, const FewQueries& few, int sm_count,
                                  void* plan);

/// All memory that the launches of a call may touch.
core::TensorList memory_of_mixed(const core::ForwardProblem& problem, const FewQueries& few, void* workspace);

}  // namespace tandem::api
