// Decode on the CPU where tiles do not know what a step has: a cache of 8 bits, queries of two parts.
#pragma once

#include <cstddef>

#include "core/decode_problem.h"

namespace tandem::cpu {

/// Bytes of workspace (aligned to 256) that `decode_by_keys` needs.
std::size_t decode_by_keys_workspace(const core::DecodeProblem& problem);

/// Attends with what the cache stands for, in fp32, key by key: right, and not fast. Nothing is appended.
void decode_by_keys(const core::DecodeProblem& problem, void* workspace);

}  // namespace tandem::cpu
