// The keys of calls (core/call_key.h): what a backend may go by to do a call again as it did it before.
#pragma once

#include <tandem/tandem.h>

#include "api/backend.h"
#include "core/call_key.h"

namespace tandem::api {

/// False for calls that are not remembered: of another backend than Hopper, of a caller with another
/// version's structs, or for study.
bool key_of(const tandem_forward_args* args, Workspace workspace, core::CallKey* key);
bool key_of(const tandem_backward_args* args, Workspace workspace, core::CallKey* key);
bool key_of(const tandem_decode_args* args, Workspace workspace, core::CallKey* key);
template <typename Args>
bool key_of(const Args*, Workspace, core::CallKey*) {
  return false;
}

}  // namespace tandem::api
