// The backward on the chip. Problems have to be supported (plan.h).
#pragma once

#include "backward/plan.h"
#include "core/backward_problem.h"
#include "core/status.h"

namespace tandem::backward {

/// Enqueues the backward on `stream` (a cudaStream_t): two kernels, three for head dims above 128; one or two
/// more for dsinks, and one for each gradient with rows that nobody sees. No synchronisation, no allocation.
/// `workspace` is aligned to 256.
core::Status launch(const core::BackwardProblem& problem, void* workspace, void* stream);

/// The same with given kernels, which serve the problem; `layout_of` says what they need. For study.
core::Status launch_with(const core::BackwardProblem& problem, const Choice& choice, void* workspace,
                         void* stream);

}  // namespace tandem::backward
