// One task of the backward pass, with the best instruction set of the machine.
#pragma once

#include "core/backward_problem.h"
#include "cpu/backward_tiling.h"

namespace tandem::cpu {

/// Computes one tile of dQ, or one of dK and dV. `statistics` of the tile's key/value head.
void run_backward_tile(const core::BackwardProblem& problem, const BackwardTile& tile,
                       const RowStatistics& statistics, const BackwardScratch& scratch);

}  // namespace tandem::cpu
