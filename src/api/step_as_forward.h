// A decoding step as a forward of variable lengths.
#pragma once

#include "core/decode_problem.h"
#include "core/problem.h"

namespace tandem::api {

/// The forward that computes the same and appends the same. Its problem has no place for a cache of 8 bits,
/// nor for a batch index into a page table: the step may not have them. A plan, fixed splits and a kernel
/// that was asked for have no part in it.
core::ForwardProblem as_forward(const core::DecodeProblem& step);

}  // namespace tandem::api
