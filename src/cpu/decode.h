// Decode on the CPU: everything, lengths and page table too, in host memory.
#pragma once

#include <cstddef>

#include "core/decode_problem.h"
#include "cpu/forward.h"

namespace tandem::cpu {

/// The oracle: each sequence's queries, keys and values gathered, and reference_forward's sums over them.
/// Appended keys are rounded to the cache's dtype, as later steps will read them; rotated queries are not.
void reference_decode(const core::DecodeProblem& problem);

/// What the oracle computes, before any rounding; neither the outputs nor the cache are touched.
ReferenceValues reference_decode_values(const core::DecodeProblem& problem);

/// Bytes of workspace (aligned to 256) that `decode` needs.
std::size_t decode_workspace(const core::DecodeProblem& problem);

/// Appends, then runs the tiles of `forward` over each sequence's keys where they lie, on all cores. A
/// sequence's result is the same to the bit in any batch and for every number of threads.
void decode(const core::DecodeProblem& problem, void* workspace);

}  // namespace tandem::cpu
