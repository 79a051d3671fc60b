// The CPU backend: a plain float64 oracle, and the fast path for machines without a GPU.
#pragma once

#include <cstddef>

#include "core/problem.h"

namespace tandem::cpu {

/// The float64 oracle: one query row after another, three plain passes, no tiling. Slow and readable on
/// purpose.
void reference_forward(const core::ForwardProblem& problem);

/// Bytes of workspace (aligned to 256) that `forward` needs: a few tiles per thread, independent of sq * sk.
std::size_t forward_workspace(const core::ForwardProblem& problem);

/// Tiled online softmax in fp32 on all cores; bf16, fp16 or fp32 in and out. Allocates nothing.
void forward(const core::ForwardProblem& problem, void* workspace);

/// The instruction set that `forward` runs with, for example "AVX2".
const char* simd_name();

/// Threads that `forward` uses.
int thread_count();

}  // namespace tandem::cpu
