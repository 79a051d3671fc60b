// Decode over an 8-bit cache on the CPU.
#pragma once

#include <cstddef>

#include "core/decode_problem.h"

namespace tandem::cpu {

/// Bytes of workspace (aligned to 256) that `decode_eight_bit` needs.
std::size_t decode_eight_bit_workspace(const core::DecodeProblem& problem);

/// Attends with what the cache stands for, in fp32, key by key: right, and not fast. Nothing is appended.
void decode_eight_bit(const core::DecodeProblem& problem, void* workspace);

}  // namespace tandem::cpu
