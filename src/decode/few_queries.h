// A forward pass of a few queries as a decoding step: keys and values are a cache that is full.
#pragma once

#include <optional>

#include "core/decode_problem.h"
#include "core/problem.h"

namespace tandem::decode {

/// What a step has of a forward pass, whoever finds its sequences: of fixed lengths, all.
core::DecodeProblem step_over(const core::ForwardProblem& problem);

/// The step that computes the same, if a kernel serves it. Variable lengths, 8-bit operands and kernels that
/// were asked for have none.
std::optional<core::DecodeProblem> step_of(const core::ForwardProblem& problem);

}  // namespace tandem::decode
