// The forward on the chip.
#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::forward {

/// Enqueues the forward on `stream` (a cudaStream_t). One kernel; where lengths vary two, or
/// three where it appends or rotates; no synchronisation, no allocation. The problem has to be supported
/// (plan.h).
core::Status launch(const core::ForwardProblem& problem, void* workspace, void* stream);

}  // namespace tandem::forward
