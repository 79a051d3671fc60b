// The merge kernels on the software Hopper: the same source as on the chip, launched with host memory.
#pragma once

#include <string>

#include "apps/sim/machine.h"
#include "core/merge_problem.h"
#include "merge/variant.h"

namespace tandem::sim {

/// "bf16 to fp32".
std::string name_of(const merge::MergeVariant& variant);

/// Runs the kernel of the problem's dtypes, whose strides the kernel has to be able to take.
hw::sim::Report simulate_merge(const core::MergeProblem& problem, const Machine& machine);

}  // namespace tandem::sim
