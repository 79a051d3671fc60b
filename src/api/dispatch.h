// Dispatch: from a caller's arguments to the backend that serves them.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "core/status.h"

namespace tandem::api {

/// Scratch memory that a caller lends for one call.
struct Workspace {
  void* data;
  std::size_t bytes;
};

/// Bytes of workspace that `run_forward` will need.
core::Status query_forward_workspace(const tandem_forward_args* args, std::size_t* bytes);

/// Validates, picks the backend, checks the workspace, runs or enqueues.
core::Status run_forward(const tandem_forward_args* args, Workspace workspace, void* stream);

/// What is built and what is here.
core::Status describe(tandem_info* info);

}  // namespace tandem::api
