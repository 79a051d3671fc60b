// From a problem to a variant and its arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include "core/problem.h"
#include "forward/arguments.h"
#include "forward/variants.h"

namespace tandem::forward {

/// The variant that serves the problem, or nullptr if none is built for it.
const ForwardVariant* choose_variant(const core::ForwardProblem& problem);

/// All arguments but the tensor maps, which each machine encodes for itself (tensor_map.h).
ForwardArguments make_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Blocks of a persistent grid on `sm_count` multiprocessors.
int grid_size(const ForwardArguments& args, int sm_count);

}  // namespace tandem::forward
