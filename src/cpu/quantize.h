// Quantising on the CPU.
#pragma once

#include "core/quantize_problem.h"

namespace tandem::cpu {

/// To the bit what the Hopper kernel writes, on all cores. Scales of any shape: one that entries, heads or
/// blocks share is that of their largest magnitude.
void quantize(const core::QuantizeProblem& problem);

}  // namespace tandem::cpu
