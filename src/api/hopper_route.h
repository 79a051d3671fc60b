// How the Hopper backend serves a forward pass: in one kernel, in parts of the keys that are merged, or as a
// decoding step. By cost, in plain C++.
#pragma once

#include <string>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::api {

enum class Way { one_kernel, parts, step };

struct Route {
  Way way = Way::one_kernel;
  int splits = 1;  ///< of Way::parts
  /// Microseconds by the model; 0 for a way that does not serve the problem.
  double one_kernel_us = 0, parts_us = 0, step_us = 0;
};

/// Whether the forward's kernels serve the problem. Needs no device.
core::Status forward_supported(const core::ForwardProblem& problem);

/// The problem has to be supported. Needs no device.
Route route_of(const core::ForwardProblem& problem);

const char* name_of(Way way);

/// The way and the kernels that were weighed, in words; or why there is none.
core::Status explain(const core::ForwardProblem& problem, std::string* words);

}  // namespace tandem::api
