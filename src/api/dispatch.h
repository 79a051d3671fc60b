// Dispatch: from a caller's arguments to the backend that serves them.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "api/backend.h"
#include "core/status.h"

namespace tandem::api {

/// Bytes of workspace that `run_forward` will need.
core::Status query_forward_workspace(const tandem_forward_args* args, std::size_t* bytes);

/// Validates, picks the backend, checks the workspace, runs or enqueues.
core::Status run_forward(const tandem_forward_args* args, Workspace workspace, void* stream);

/// How Hopper would serve the call, in words.
core::Status explain_forward(const tandem_forward_args* args, char* text, std::size_t size);

/// The same for the backward pass.
core::Status query_backward_workspace(const tandem_backward_args* args, std::size_t* bytes);
core::Status run_backward(const tandem_backward_args* args, Workspace workspace, void* stream);

/// The same for decode.
core::Status query_decode_workspace(const tandem_decode_args* args, std::size_t* bytes);
core::Status run_decode(const tandem_decode_args* args, Workspace workspace, void* stream);

/// Bytes of the plan that `make_decode_plan` will write.
core::Status query_decode_plan(const tandem_decode_args* args, std::size_t* bytes);
core::Status make_decode_plan(const tandem_decode_args* args, Workspace plan, void* stream);

/// The same for merge, which needs no workspace.
core::Status run_merge(const tandem_merge_args* args, void* stream);
/// And for quantize.
core::Status run_quantize(const tandem_quantize_args* args, void* stream);

/// What is built and what is here.
core::Status describe(tandem_info* info);

}  // namespace tandem::api
