// The float64 oracle, as the tests ask for it.
#pragma once

#include "core/problem.h"
#include "cpu/forward.h"

namespace tandem::test {

/// cpu::reference_values, to the bit. It widens every key for every query, so it gets fp32 copies, which hold
/// elements of any dtype exactly: that takes a third of the time.
cpu::ReferenceValues oracle_values(const core::ForwardProblem& problem);

}  // namespace tandem::test
