// How the Hopper backend serves a decoding step: by decode's kernels, or, where the step has what these don't
// know (chunks, slopes, a tree, values of another head dim), as a forward of variable lengths. In plain C++.
#pragma once

#include <cstddef>

#include "core/decode_problem.h"
#include "core/status.h"

namespace tandem::api {

/// Whether the step goes as a forward (step_as_forward.h).
bool goes_as_forward(const core::DecodeProblem& step);

/// OK if a built kernel serves the step; else names what was asked. Needs no device.
core::Status step_supported(const core::DecodeProblem& step);

/// Bytes of workspace, of either way. Steps of both share it, so that a forward leaves the counters at its
/// beginning alone, which are zero between decode's steps.
std::size_t step_workspace_bytes(const core::DecodeProblem& step);
/// The forward's part of such a workspace.
void* workspace_of_forward(void* workspace);

/// What is wrong with the memory of the plan that the step brings, if it reads one.
core::Status check_step_plan(const core::DecodeProblem& step);

/// Bytes of the step's plan; 0 where it takes none.
std::size_t step_plan_bytes(const core::DecodeProblem& step);

}  // namespace tandem::api
