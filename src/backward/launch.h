// Host side of the Hopper backward: which kernels serve a problem, and their launch.
#pragma once

#include <cstddef>

#include "backward/plan.h"
#include "core/backward_problem.h"
#include "core/status.h"

namespace tandem::backward {

/// OK if built variants serve the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::BackwardProblem& problem);

/// Bytes that `launch` needs for a supported problem; their contents do not matter. 8 for each query of each
/// head, both padded to 128; and, unless the problem is deterministic or the head dim above 128, 4 for each
/// element of q as fp32, padded so too and to head dims 64 or 128.
std::size_t workspace_bytes(const core::BackwardProblem& problem);

/// Enqueues the backward on `stream` (a cudaStream_t): three kernels, and one for each gradient with rows
/// that nobody sees. No synchronisation, no allocation. `workspace` is aligned to 256.
core::Status launch(const core::BackwardProblem& problem, void* workspace, void* stream);

/// The same with given kernels, which serve the problem; `workspace_layout` says what they need. For study.
core::Status launch_with(const core::BackwardProblem& problem, const Choice& choice, void* workspace,
                         void* stream);

}  // namespace tandem::backward
