// The forward on the chip.
#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::forward {

/// Enqueues the forward on `stream` (a cudaStream_t). One kernel; where lengths vary two, with a plan one,
/// and one more where it appends or rotates; no synchronisation, no allocation. The problem has to be
/// supported (plan.h).
core::Status launch(const core::ForwardProblem& problem, void* workspace, void* stream);
/// Where lengths vary: enqueues what writes the plan of such calls.
core::Status make_plan(const core::ForwardProblem& problem, void* plan, void* stream);

}  // namespace tandem::forward
