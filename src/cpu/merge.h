// Merging partial results on the CPU.
#pragma once

#include "core/merge_problem.h"
#include "cpu/forward.h"

namespace tandem::cpu {

/// The oracle: the definition in float64, one row after another.
void reference_merge(const core::MergeProblem& problem);

/// What the oracle computes, before any rounding; the outputs are not touched.
ReferenceValues reference_merge_values(const core::MergeProblem& problem);

/// fp32 arithmetic on all cores; allocates nothing.
void merge(const core::MergeProblem& problem);

}  // namespace tandem::cpu
