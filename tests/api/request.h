// A valid call that a test spoils in one place.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include <tandem/attention.hpp>
#include <tandem/tandem.h>

#include "tests/support/backward_case.h"
#include "tests/support/decode_case.h"
#include "tests/support/forward_case.h"

namespace tandem::test {

/// Small, with every dimension different, grouped heads and lse.
inline ForwardCase small_case() {
  return {
      .dtype = TANDEM_FP32, .batch = 2, .q_len = 3, .k_len = 5, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
}

/// Numbers that no enumerator has, as C callers may pass them.
template <typename Enum>
void store(Enum& field, int number) {
  static_assert(sizeof(field) == sizeof(number));
  std::memcpy(&field, &number, sizeof(number));
}

/// The arguments of a case, over tensors with poisoned outputs.
struct Request : ForwardArgs {
  explicit Request(const ForwardCase& c = small_case(), tandem_backend backend = TANDEM_BACKEND_CPU);

  /// Calls tandem_forward with `workspace`, which is larger than any of these tests needs.
  tandem_status run() { return tandem_forward(&args, workspace.data(), workspace_bytes(), nullptr); }
  std::size_t workspace_bytes() const { return workspace.size() * sizeof(WorkspaceBlock); }
  bool outputs_untouched() const { return tensors.o.untouched() && tensors.lse.untouched(); }

  ForwardTensors tensors;
  std::vector<WorkspaceBlock> workspace;
};

/// Small, every dimension different, with gradients of lse and of sinks.
inline BackwardCase small_backward() { return {.forward = small_case(), .dlse = true, .sinks = true}; }

struct HoldsBackwardTensors {
  BackwardTensors tensors;
};

/// The arguments of a backward call for the CPU backend, over tensors with poisoned outputs.
struct BackwardRequest : HoldsBackwardTensors, BackwardArgs {
  explicit BackwardRequest(const BackwardCase& c = small_backward(),
                           tandem_backend backend = TANDEM_BACKEND_CPU);

  tandem_status run() { return tandem_backward(&args, workspace.data(), workspace_bytes(), nullptr); }
  std::size_t workspace_bytes() const { return workspace.size() * sizeof(WorkspaceBlock); }
  bool outputs_untouched() const {
    return tensors.dq.untouched() && tensors.dk.untouched() && tensors.dv.untouched() &&
           tensors.dsinks.untouched();
  }

  std::vector<WorkspaceBlock> workspace;
};

/// Small, every dimension different, with everything that a step can have: pages, an index, appended tokens,
/// rotary embedding, lse, sinks.
inline DecodeCase small_step() {
  return {.dtype = TANDEM_FP32,
          .q_len = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .new_len = 5,
          .lengths = {20, 9},
          .capacity = 48,
          .page_size = 8,
          .batch_index = true,
          .rotary_dim = 16,
          .sinks = true};
}

struct HoldsDecodeTensors {
  DecodeTensors tensors;
};

/// The arguments of a step for the CPU backend, over tensors with poisoned outputs.
struct DecodeRequest : HoldsDecodeTensors, DecodeArgs {
  explicit DecodeRequest(const DecodeCase& c = small_step());

  tandem_status run() { return tandem_decode(&args, workspace.data(), workspace_bytes(), nullptr); }
  std::size_t workspace_bytes() const { return workspace.size() * sizeof(WorkspaceBlock); }
  /// The cache is an output too.
  bool outputs_untouched() const;

  std::vector<WorkspaceBlock> workspace;
};

}  // namespace tandem::test
