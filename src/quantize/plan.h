// What the host decides about a quantisation, on either machine: plain C++.
#pragma once

#include "core/quantize_problem.h"
#include "core/status.h"
#include "launch/record.h"
#include "quantize/table.h"

namespace tandem::quantize {

/// OK if a kernel can do it; else names what was asked, and what can be done. Needs no device; alignment of
/// data pointers is checked where they are not null.
core::Status supported(const core::QuantizeProblem& problem);

/// The launch on `sm_count` multiprocessors.
launch::Record<Family> make_record(const core::QuantizeProblem& problem, int sm_count);

}  // namespace tandem::quantize
