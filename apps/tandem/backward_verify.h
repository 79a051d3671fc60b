// Are gradients right? The rule of verify.h for each of the three.
#pragma once

#include "backward_call.h"
#include "verify.h"

namespace tandem::cli {

/// Gradients in the order b, s, h, d.
struct Gradients {
  std::vector<float> dq, dk, dv;
};

/// The library's float64 oracle on the same inputs, forward and backward, widened to fp32.
Gradients exact_gradients(const BackwardCall& call);

/// Gradients as a plain implementation computes them: o rounded, probabilities and their gradients in fp32
/// and rounded to the dtype of q where a product reads them, sums in fp32, results rounded.
Gradients standard_gradients(const BackwardCall& call);

/// `judge` for each gradient, with three times the standard's largest error where scores are capped, and that
/// nothing was written between the elements. Errors are those of the gradient that is nearest to its limit.
Verdict verify(const BackwardCall& call, const BackwardOutput& output);

}  // namespace tandem::cli
