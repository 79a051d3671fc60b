// Decode on the chip. Problems have to be supported (plan.h).
#pragma once

#include "core/decode_problem.h"
#include "core/status.h"

namespace tandem::decode {

/// Enqueues the step on `stream` (a cudaStream_t). One kernel, or two where tiles are wide (combine.h); no
/// synchronisation, no allocation.
core::Status launch(const core::DecodeProblem& problem, void* workspace, void* stream);

/// The same over a workspace whose counters have not been zeroed: one kernel more.
core::Status launch_on_any_workspace(const core::DecodeProblem& problem, void* workspace, void* stream);

/// Enqueues the making of a plan, which serves calls of the same shapes, options and lengths.
core::Status make_plan(const core::DecodeProblem& problem, void* plan, void* stream);

}  // namespace tandem::decode
