// What the host decides about a merge, on either machine: plain C++.
#pragma once

#include "core/merge_problem.h"
#include "core/status.h"
#include "merge/arguments.h"

namespace tandem::merge {

/// OK if the kernel can take the problem's strides and size; else names what was asked. Needs no device;
/// alignment of data pointers is checked where they are not null.
core::Status supported(const core::MergeProblem& problem);

MergeArguments make_arguments(const core::MergeProblem& problem);

/// Blocks of `threads` threads; 0 where there are no rows.
int blocks_of(const MergeArguments& args);

}  // namespace tandem::merge
