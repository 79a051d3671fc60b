// The CPU backend: a plain float64 oracle, and the fast path for machines without a GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "core/problem.h"

namespace tandem::cpu {

/// The float64 oracle: one query row after another, three plain passes, no tiling. Slow and readable on
/// purpose. A key that a query does not see is never read for it.
void reference_forward(const core::ForwardProblem& problem);

/// What the oracle works with, a part for each thread: for problems with the columns of `whole` and up to
/// `most_keys` keys.
class ReferenceMemory {
 public:
  ReferenceMemory(const core::ForwardProblem& whole, std::int64_t most_keys);

  struct Part {
    std::vector<double> query, key, value, weights, o;
  };
  Part& of_thread(int thread) { return parts_[static_cast<std::size_t>(thread)]; }

 private:
  std::vector<Part> parts_;
};

/// The same in memory that is there already. Allocates nothing.
void reference_forward(const core::ForwardProblem& problem, ReferenceMemory& memory);

/// What the oracle computes, before any rounding: elements in the order b, s, h, d of o, and b, s, h of lse.
struct ReferenceValues {
  std::vector<double> o, lse;
};

/// The oracle's values for the problem's q, k and v; o and lse of the problem are not touched.
ReferenceValues reference_values(const core::ForwardProblem& problem);

/// Bytes of workspace (aligned to 256) that `forward` needs: a few tiles per thread, independent of sq * sk.
/// Of variable lengths: that any of the sequences needs (varlen.h).
std::size_t forward_workspace(const core::ForwardProblem& problem);

/// Tiled online softmax in fp32 on all cores; bf16, fp16 or fp32 in and out. Allocates nothing. The result is
/// the same to the bit for every number of threads. A NaN or infinity in a key or value row reaches the
/// queries that see it, and no other.
void forward(const core::ForwardProblem& problem, void* workspace);

/// The instruction set that `forward` runs with, for example "AVX2".
const char* simd_name();

}  // namespace tandem::cpu
