// Host side of merging on Hopper: its launch.
#pragma once

#include "core/merge_problem.h"
#include "core/status.h"

namespace tandem::merge {

/// Enqueues the merge on `stream` (a cudaStream_t). One kernel, no synchronisation, no allocation.
core::Status launch(const core::MergeProblem& problem, void* stream);

}  // namespace tandem::merge
