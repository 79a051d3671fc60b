// The backward pass on the CPU: the float64 oracle, and the fast path for machines without a GPU.
#pragma once

#include <vector>

#include "core/backward_problem.h"

namespace tandem::cpu {

/// The oracle: one query row after another, every line the definition. Slow and readable on purpose. Neither
/// a key that a query does not see nor a row that sees no key is read for any sum.
void reference_backward(const core::BackwardProblem& problem);

/// Gradients before any rounding: elements in the order b, s, h, d.
struct ReferenceGradients {
  std::vector<double> dq, dk, dv;
};

/// The gradients as they are in exact arithmetic: like reference_backward, but with o and lse as float64 has
/// them. Those of the problem are not read, its outputs not touched.
ReferenceGradients reference_gradients(const core::BackwardProblem& problem);

}  // namespace tandem::cpu
