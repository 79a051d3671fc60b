// Calls that run no operation: queries, explanations and the making of plans. operation.h has the others.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "api/backend.h"
#include "core/status.h"

namespace tandem::api {

/// How Hopper would serve the call, in words.
core::Status explain_forward(const tandem_forward_args* args, char* text, std::size_t size);

/// Bytes of the plan that `make_decode_plan` will write.
core::Status query_decode_plan(const tandem_decode_args* args, std::size_t* bytes);
core::Status make_decode_plan(const tandem_decode_args* args, Workspace plan, void* stream);

/// What is built and what is here.
core::Status describe(tandem_info* info);

}  // namespace tandem::api
