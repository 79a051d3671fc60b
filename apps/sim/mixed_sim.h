// Calls of variable lengths that run the forward's and decode's kernels, on the software Hopper.
#pragma once

#include <cstddef>
#include <span>

#include "api/hopper_mixed.h"
#include "apps/sim/machine.h"

namespace tandem::sim {

/// Runs all kernels of the call. `workspace`: aligned to 256, of api::mixed_workspace_bytes, with anything in
/// it.
hw::sim::Report simulate_mixed(const core::ForwardProblem& problem, const api::FewQueries& few,
                               std::span<std::byte> workspace, const Machine& machine);

/// Runs the kernels that make the plan of such calls: aligned to 256, of api::mixed_plan_bytes.
hw::sim::Report simulate_mixed_plan(const core::ForwardProblem& problem, const api::FewQueries& few,
                                    std::span<std::byte> plan, const Machine& machine);

}  // namespace tandem::sim
