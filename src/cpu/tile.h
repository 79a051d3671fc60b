// One task of the fast backend, with the best instruction set of the machine.
#pragma once

#include "core/problem.h"
#include "cpu/tiling.h"

namespace tandem::cpu {

/// Computes one tile of a problem.
void run_tile(const core::ForwardProblem& problem, const Tile& tile, const Scratch& scratch);

}  // namespace tandem::cpu
