// The Hopper backend as the dispatcher sees it, in every build: hopper.cpp has it, hopper_absent.cpp says
// that this library was built without.
#pragma once

#include <cstddef>
#include <string>

#include "core/backward_problem.h"
#include "core/decode_problem.h"
#include "core/merge_problem.h"
#include "core/problem.h"
#include "core/quantize_problem.h"
#include "core/status.h"

namespace tandem::api {

bool hopper_built();

/// OK if the current device can run the kernels; else why not.
core::Status hopper_usable();

/// OK if a kernel serves the problem. Needs no device and no data pointers.
core::Status hopper_supports(const core::ForwardProblem& problem);

/// Enqueues the forward on `stream`, a cudaStream_t; or says why the current device can't run it.
std::size_t hopper_workspace(const core::ForwardProblem& problem);
core::Status launch_hopper(const core::ForwardProblem& problem, void* workspace, void* stream);

/// How it would be done, in words.
core::Status hopper_explanation(const core::ForwardProblem& problem, std::string* words);

/// The same for the backward pass.
core::Status hopper_supports(const core::BackwardProblem& problem);
std::size_t hopper_workspace(const core::BackwardProblem& problem);
core::Status launch_hopper(const core::BackwardProblem& problem, void* workspace, void* stream);

/// The same for decode.
core::Status hopper_supports(const core::DecodeProblem& problem);
std::size_t hopper_workspace(const core::DecodeProblem& problem);
core::Status launch_hopper(const core::DecodeProblem& problem, void* workspace, void* stream);

/// Bytes of the plan that make_hopper_plan enqueues the writing of.
std::size_t hopper_plan(const core::DecodeProblem& problem);
core::Status make_hopper_plan(const core::DecodeProblem& problem, void* plan, void* stream);

/// The same for merge.
core::Status hopper_supports(const core::MergeProblem& problem);
core::Status launch_hopper(const core::MergeProblem& problem, void* stream);

/// And for quantize.
core::Status hopper_supports(const core::QuantizeProblem& problem);
core::Status launch_hopper(const core::QuantizeProblem& problem, void* stream);

/// True if `address` is device or managed memory. False throughout in a library without CUDA, which cannot
/// know.
bool is_device_memory(const void* address);

/// Fills device_name and device_sm_count.
void describe_device(tandem_info* info);

}  // namespace tandem::api
