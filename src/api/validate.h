// Validation: every check on a call, once, for all backends, before anything is launched.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::api {

/// Turns the caller's arguments into a consistent problem, or says which argument is wrong, what it was and
/// what is allowed. `need_data` is false for workspace queries, whose data pointers may be null.
///
/// The problem's mask is the simplest one with the same meaning: a side of the band that hides nothing is
/// unlimited.
core::Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem);

/// Structs grow at their end, so a caller's struct may be as short as the first version and as long as this
/// library's.
core::Status check_struct_size(const char* name, std::size_t size, std::size_t first_version,
                               std::size_t own);

}  // namespace tandem::api
