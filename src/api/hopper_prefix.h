// How the Hopper backend serves a decoding step whose sequences share prefixes: new tokens are appended and
// queries rotated, a list is made, the step leaves a part of each query over its prefix and one over the
// rest, and both are merged. In plain C++.
#pragma once

#include <cstddef>
#include <optional>

#include "decode/prefix_plan.h"
#include "forward/table.h"
#include "launch/record.h"
#include "merge/table.h"

namespace tandem::api {

/// Of a step that is supported: nullopt where it goes as without prefixes.
std::optional<decode::SharedStep> shared_prefixes_of(const core::DecodeProblem& problem);

/// Bytes of workspace of such a call. It begins with the counters of other steps, which stay as they are.
std::size_t shared_workspace_bytes(const core::DecodeProblem& problem, const decode::SharedStep& shared);

/// Its launches in their order. Those that there is nothing to do for have no blocks.
struct SharedLaunches {
  launch::Record<forward::AppendFamily> append;
  launch::Record<decode::PrefixListFamily> list;
  launch::Record<decode::Family> step;
  launch::Record<decode::CombineFamily> combine;
  launch::Record<merge::Family> merge;
};
SharedLaunches launches_of(const core::DecodeProblem& problem, const decode::SharedStep& shared, int sm_count,
                           void* workspace);

/// All memory that they may touch.
core::TensorList memory_of_shared(const core::DecodeProblem& problem, const decode::SharedStep& shared,
                                  void* workspace);

}  // namespace tandem::api
