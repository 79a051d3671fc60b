// Few queries on many keys: parts of the keys side by side, then a merge.
//
// Source: Dao et al., "Flash-Decoding", 2023.
#pragma once

#include <cstddef>

#include "core/merge_problem.h"
#include "core/problem.h"

namespace tandem::forward {

/// Parts that the keys are cut into, so that a problem of few tiles fills the chip, and what these take; 1:
/// they are not. Variable lengths, windows, 8-bit inputs and kernels asked for by name are not split.
struct SplitChoice {
  int splits = 1;
  double us = 0;  ///< of the parts and their merge
};
SplitChoice choose_splits(const core::ForwardProblem& problem);

/// Bytes of workspace that a split problem needs: its parts in fp32, and the list of their tiles.
std::size_t split_workspace_bytes(const core::ForwardProblem& problem, int splits);

/// The two steps of a split problem, over `workspace`.
struct SplitForward {
  core::ForwardProblem parts;
  void* parts_workspace;
  core::MergeProblem merge;
};
SplitForward split(const core::ForwardProblem& problem, int splits, void* workspace);

}  // namespace tandem::forward
