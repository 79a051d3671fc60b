// The Hopper backend as the rest of the library sees it.
#pragma once

#include <cstddef>
#include <string>

#include "api/backend.h"
#include "core/backward_problem.h"
#include "core/call_key.h"
#include "core/decode_problem.h"
#include "core/merge_problem.h"
#include "core/problem.h"
#include "core/quantize_problem.h"
#include "core/status.h"

namespace tandem::api {

struct Hopper {
  Backend<core::ForwardProblem> forward;
  Backend<core::BackwardProblem> backward;
  Backend<core::DecodeProblem> decode;
  Backend<core::MergeProblem> merge;
  Backend<core::QuantizeProblem> quantize;

  /// OK if the current device can run the kernels; else why not.
  core::Status (*usable)();
  /// Fills device_name and device_sm_count.
  void (*describe_device)(tandem_info*);
  /// True if the address is device or managed memory.
  bool (*is_device_memory)(const void*);

  /// How a forward would be done, in words.
  core::Status (*explain)(const core::ForwardProblem&, std::string* words);
  /// Does a call again that was recorded, if the thread remembers it and it would go the same way; else
  /// false.
  bool (*repeat)(const core::CallKey&, void* stream, core::Status*);
  /// What the thread's next call enqueues is recorded from `begin` to `end`, which says whether it succeeded.
  void (*begin_recording)(const core::CallKey&);
  void (*end_recording)(bool ok);
};

/// nullptr in a library that was built without.
extern const Hopper* const hopper;

/// Why a call can't be served then.
core::Status hopper_absent();

}  // namespace tandem::api
