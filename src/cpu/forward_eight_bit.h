// The forward of 8-bit inputs on the CPU.
#pragma once

#include <cstddef>

#include "core/problem.h"

namespace tandem::cpu {

/// Bytes of workspace (aligned to 256) that `forward_eight_bit` needs: fp32 copies of q, k, v and o besides
/// `forward`'s.
std::size_t forward_eight_bit_workspace(const core::ForwardProblem& problem);

/// As `forward` for what the inputs stand for: probabilities are not rounded to 8 bits here.
void forward_eight_bit(const core::ForwardProblem& problem, void* workspace);

}  // namespace tandem::cpu
