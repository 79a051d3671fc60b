// What the host decides about a merge, on either machine: plain C++.
#pragma once

#include "core/merge_problem.h"
#include "core/status.h"
#include "launch/record.h"
#include "merge/table.h"

namespace tandem::merge {

/// OK if the kernel can take the problem's strides and size; else names what was asked. Needs no device;
/// alignment of data pointers is checked where they are not null.
core::Status supported(const core::MergeProblem& problem);

launch::Record<Family> make_record(const core::MergeProblem& problem);

}  // namespace tandem::merge
