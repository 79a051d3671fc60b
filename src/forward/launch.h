// Host side of the Hopper forward: which variant serves a problem, and its launch.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::forward {

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::ForwardProblem& problem);

/// Bytes of workspace that `launch` needs: 0 where all sequences have the same lengths.
std::size_t workspace_bytes(const core::ForwardProblem& problem);

/// Enqueues the forward on `stream` (a cudaStream_t). One kernel, or two where lengths vary; no
/// synchronisation, no allocation.
core::Status launch(const core::ForwardProblem& problem, void* workspace, void* stream);

}  // namespace tandem::forward
