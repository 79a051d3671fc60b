// Host side of quantising on Hopper: its launch.
#pragma once

#include "core/quantize_problem.h"
#include "core/status.h"

namespace tandem::quantize {

/// Enqueues the quantisation on `stream` (a cudaStream_t). One kernel, no synchronisation, no allocation.
core::Status launch(const core::QuantizeProblem& problem, void* stream);

}  // namespace tandem::quantize
