// The same-precision standard implementation: what a plain, untiled attention gives in the dtype's
// arithmetic.
#pragma once

#include <vector>

#include "core/backward_problem.h"
#include "core/problem.h"

namespace tandem::test {

/// Values in the order b, s, h, d of o, and b, s, h of lse.
struct ForwardValues {
  std::vector<double> o, lse;
};

/// Scores and softmax in fp32, probabilities rounded to the dtype, sums in fp32, output rounded to the dtype.
/// Reads q, k and v of the problem only; never a key that a query does not see.
ForwardValues standard_forward(const core::ForwardProblem& problem);

/// Gradients in the order b, s, h, d.
struct BackwardValues {
  std::vector<double> dq, dk, dv;
};

/// Probabilities and their gradients in fp32, both rounded to the dtype where a product reads them, sums in
/// fp32, outputs rounded to the dtype. Reads o and lse of the problem; never a key that a query does not see.
BackwardValues standard_backward(const core::BackwardProblem& problem);

}  // namespace tandem::test
