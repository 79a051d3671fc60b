// Host side of the Hopper decode: which variant serves a problem, and its launch.
#pragma once

#include <cstddef>

#include "core/decode_problem.h"
#include "core/status.h"

namespace tandem::decode {

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of pointers is checked where they are not null.
core::Status supported(const core::DecodeProblem& problem);

/// Bytes of workspace, aligned to 256 and zeroed before its first use; every call leaves it ready for the
/// next, of any shape that fits. Needs no device.
std::size_t workspace_bytes(const core::DecodeProblem& problem);

/// Enqueues the step on `stream` (a cudaStream_t). One kernel, no synchronisation, no allocation.
core::Status launch(const core::DecodeProblem& problem, void* workspace, void* stream);

/// Bytes of a plan, aligned to 4.
std::size_t plan_bytes(const core::DecodeProblem& problem);

/// Enqueues the making of a plan, which serves calls of the same shapes, options and lengths.
core::Status make_plan(const core::DecodeProblem& problem, void* plan, void* stream);

}  // namespace tandem::decode
