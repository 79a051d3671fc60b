// Validation: every check on a call, once, for all backends, before anything is launched.
#pragma once

#include <tandem/tandem.h>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::api {

/// Turns the caller's arguments into a consistent problem, or says which argument is wrong, what it was and
/// what is allowed. `need_data` is false for workspace queries, whose data pointers may be null.
core::Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem);

}  // namespace tandem::api
