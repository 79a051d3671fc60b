// What tandem.h says of a backward call, written down a second time (forward_oracle.h).
#pragma once

#include <vector>

#include "tests/fuzz/forward_oracle.h"

namespace tandem::fuzz {

Verdict judge(const tandem_backward_args& args);

/// A gradient in float64, dense, with the sums of its terms' magnitudes: what an error is measured by.
struct Gradient {
  std::vector<double> values, magnitudes;
};
struct Gradients {
  Gradient dq, dk, dv;
  bool comparable = true;  ///< all numbers that count are finite, and scores of a size that fp32 resolves
};
/// Those of a valid call.
Gradients differentiate(const tandem_backward_args& args);

}  // namespace tandem::fuzz
