// A step whose sequences share prefixes, as the kernels see it that read a shared prefix once for several of
// them (prefix_list.h): a step over a list on the device, whose results are fp32 parts. Plain C++.
#pragma once

#include <cstdint>
#include <optional>

#include "core/decode_problem.h"
#include "decode/table.h"
#include "launch/record.h"

namespace tandem::decode {

/// The step over a list. Its memory is not known yet.
struct SharedStep {
  core::DecodeProblem step;
  const DecodeVariant* variant;
};

/// Of a supported problem that says what sequences share: nullopt where each sequence reads its own keys, as
/// without prefixes: fixed splits, plans, windows to the left, 8-bit caches, values of another head dim, head
/// dims above 256, what goes by the forward's kernels, and where a tile has no room for two sequences'
/// queries.
std::optional<SharedStep> shared_step_of(const core::DecodeProblem& problem);

/// Memory of a call's own, in which the step finds its list and leaves its results.
struct SharedMemory {
  std::int32_t *list, *notes;  ///< core::listed_words of the step's sequences; prefix_notes of the groups
  float *o, *lse;              ///< parts, sequences, query tokens, heads (and columns), contiguous
};

/// The step over that memory, with the queries of `problem`, which are rotated already and one token's after
/// another's.
core::DecodeProblem step_over(const SharedStep& shared, const core::DecodeProblem& problem,
                              const SharedMemory& memory);

/// The launch that writes the list for a grid of `step_blocks`.
launch::Record<PrefixListFamily> make_prefix_list_record(const core::DecodeProblem& problem,
                                                         const SharedStep& shared, const SharedMemory& memory,
                                                         int step_blocks);

/// How far the query tokens of a batch stand apart, where that is the same from sequence to sequence.
std::optional<std::int64_t> token_stride(const core::Tensor& q);

}  // namespace tandem::decode
