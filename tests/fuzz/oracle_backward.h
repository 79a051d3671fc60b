// What tandem.h says of a backward call, written down a second time .
#pragma once

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

Verdict judge(const tandem_backward_args& args);

/// A gradient in float64, dense, with the sums of its terms' magnitudes: what an error is measured by.
struct Gradient {
  Numbers values, magnitudes;
};
struct Gradients {
  Gradient dq, dk, dv, dsinks;
  bool comparable = true;  ///< all numbers that count are finite, and scores of a size that fp32 resolves
};
/// dsinks as a tensor: none where they are not wanted.
tandem_tensor dsinks_of(const tandem_backward_args& args);
/// Those of a valid call.
Gradients differentiate(const tandem_backward_args& args);

}  // namespace tandem::fuzz
