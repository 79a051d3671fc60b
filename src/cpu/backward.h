// The backward pass on the CPU: the float64 oracle, and the fast path for machines without a GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "core/backward_problem.h"

namespace tandem::cpu {

/// The oracle: one query row after another, every line the definition. Slow and readable on purpose. Neither
/// a key that a query does not see nor a row that sees no key is read for any sum.
void reference_backward(const core::BackwardProblem& problem);

/// Gradients before any rounding: elements in the order b, s, h, d, of variable lengths the rows in use of
/// all sequences, one after another; of sinks, where there are any, by head.
struct ReferenceGradients {
  std::vector<double> dq, dk, dv, dsinks;
};

/// The gradients as they are in exact arithmetic: like reference_backward, but with o and lse as float64 has
/// them. Those of the problem are not read, its outputs not touched.
ReferenceGradients reference_gradients(const core::BackwardProblem& problem);

/// Bytes of workspace (aligned to 256) that `backward` needs: a few tiles per thread, and 8 for each query of
/// each head; of variable lengths, of the longest sequence that the problem's bounds allow.
std::size_t backward_workspace(const core::BackwardProblem& problem);

/// Tiled, in fp32 on all cores; bf16, fp16 or fp32 in and out. Allocates nothing. The result is the same to
/// the bit in every run and for every number of threads, whatever `deterministic` says, and of variable
/// lengths that of each sequence in a call of its own. A NaN or infinity reaches only what it has a part in
/// by the definition.
void backward(const core::BackwardProblem& problem, void* workspace);

}  // namespace tandem::cpu
