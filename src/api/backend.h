// What every call decides and checks before a backend gets it, and what a backend is.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::api {

/// A backend's functions for an operation. Each may count on what is said of the one above it.
template <typename Problem>
struct Backend {
  /// OK if it serves the problem; else names what was asked. nullptr: it serves all. Touches no memory of the
  /// call and no device.
  core::Status (*supports)(const Problem&) = nullptr;
  /// Bytes that `run` needs for a problem that writes something. nullptr: none.
  std::size_t (*workspace)(const Problem&) = nullptr;
  /// Runs or enqueues. The workspace is checked.
  core::Status (*run)(const Problem&, void* workspace, void* stream) = nullptr;
  /// Bytes of the plan that `make_plan` enqueues the writing of. nullptr: there are none.
  std::size_t (*plan_bytes)(const Problem&) = nullptr;
  core::Status (*make_plan)(const Problem&, void* plan, void* stream) = nullptr;
  /// Whether `run` also does with no workspace at all. nullptr: never.
  bool (*runs_without)(const Problem&) = nullptr;
};

/// Memory that a caller lends: the workspace of one call, or a plan.
struct Workspace {
  void* data;
  std::size_t bytes;

  bool lent() const { return data != nullptr || bytes != 0; }
};

/// Whose memory AUTO follows: the first that has elements and an address. nullptr: none has.
const void* followed_address(const core::TensorList& tensors);
/// The backend that AUTO stands for. `idle` calls, which touch no memory, need none for that.
core::Status choose_backend(const core::TensorList& tensors, bool idle, tandem_backend* chosen);

/// What a caller calls some memory that it lends, and the function that says how much is needed.
struct Lent {
  const char *name, *bytes_name, *query;
};

/// Large enough, there and aligned.
core::Status check_workspace(const Lent& lent, Workspace workspace, std::size_t needed);
/// Where the answer to a query goes.
core::Status check_answer(const std::size_t* bytes);

/// Reading device memory on the host would crash the caller's process.
core::Status check_host_memory(const core::TensorList& tensors);

}  // namespace tandem::api
