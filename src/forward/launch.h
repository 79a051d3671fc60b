// Host side of the Hopper forward: which variant serves a problem, and its launch.
#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::forward {

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::ForwardProblem& problem);

/// Enqueues the forward on `stream` (a cudaStream_t). One kernel, no synchronisation, no allocation.
core::Status launch(const core::ForwardProblem& problem, void* stream);

}  // namespace tandem::forward
