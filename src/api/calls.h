// Calls that explain. operation.h has the others.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "api/backend.h"
#include "core/status.h"

namespace tandem::api {

/// How Hopper would serve the call, in words.
core::Status explain_forward(const tandem_forward_args* args, char* text, std::size_t size);

/// What is built and what is here.
core::Status describe(tandem_info* info);

}  // namespace tandem::api
