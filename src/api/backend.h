// What every call decides and checks before a backend gets it.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::api {

/// Memory that a caller lends: the workspace of one call, or a plan.
struct Workspace {
  void* data;
  std::size_t bytes;
};

/// AUTO follows q's memory; `idle` calls, which touch no memory, need no q for that.
core::Status choose_backend(tandem_backend asked, const core::Tensor& q, bool idle, tandem_backend* chosen);

/// What a caller calls some memory that it lends, and the function that says how much is needed.
struct Lent {
  const char *name, *bytes_name, *query;
};

/// Large enough, there and aligned.
core::Status check_workspace(const Lent& lent, Workspace workspace, std::size_t needed);

/// Reading device memory on the host would crash the caller's process.
core::Status check_host_memory(const core::TensorList& tensors);

}  // namespace tandem::api
