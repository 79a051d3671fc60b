// The quantising kernels on the software Hopper: the same source as on the chip, launched with host memory.
#pragma once

#include <string>

#include "apps/sim/machine.h"
#include "core/quantize_problem.h"
#include "quantize/variant.h"

namespace tandem::sim {

/// "bf16 d64 by column".
std::string name_of(const quantize::QuantizeVariant& variant);

/// Runs the kernel of the problem, which it has to be able to do (quantize::supported).
hw::sim::Report simulate_quantize(const core::QuantizeProblem& problem, const Machine& machine);

}  // namespace tandem::sim
