// The kernels of the backward on the software Hopper: the same source as on the chip, with host memory.
#pragma once

#include <string>

#include "apps/sim/machine.h"
#include "backward/plan.h"
#include "core/backward_problem.h"

namespace tandem::sim {

/// "bf16 d64 softcap keys_pipelined 128x128x2x2".
std::string name_of(const backward::BackwardVariant& variant);

/// Runs the kernels of the choice on the problem, whose tensors TMA has to be able to take, in a workspace
/// that holds NaN; ends at the first fault.
hw::sim::Report simulate_backward(const core::BackwardProblem& problem, const backward::Choice& choice,
                                  const Machine& machine);

}  // namespace tandem::sim
