// Elements of tensors as fp32.
#pragma once

#include <vector>

#include "core/problem.h"

namespace tandem::test {

/// All elements, in the order b, h, s, d.
std::vector<float> gather(const core::Tensor& tensor);
/// Values in that order, wherever they lie, without their scales.
std::vector<float> gather_unscaled_values(const core::ForwardProblem& problem);

}  // namespace tandem::test
