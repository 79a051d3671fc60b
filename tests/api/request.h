// A valid call that a test spoils in one place.
#pragma once

#include <cstddef>
#include <vector>

#include <tandem/attention.hpp>
#include <tandem/tandem.h>

#include "tests/support/forward_case.h"

namespace tandem::test {

/// Small, with every dimension different, grouped heads and lse.
inline ForwardCase small_case() {
  return {
      .dtype = TANDEM_FP32, .batch = 2, .q_len = 3, .k_len = 5, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
}

/// The arguments of a case for the CPU backend, over tensors with poisoned outputs.
struct Request {
  explicit Request(const ForwardCase& c = small_case());

  /// Calls tandem_forward with `workspace`, which is larger than any of these tests needs.
  tandem_status run() { return tandem_forward(&args, workspace.data(), workspace_bytes(), nullptr); }
  std::size_t workspace_bytes() const { return workspace.size() * sizeof(WorkspaceBlock); }
  bool outputs_untouched() const { return tensors.o.untouched() && tensors.lse.untouched(); }

  ForwardTensors tensors;
  std::vector<WorkspaceBlock> workspace;
  tandem_forward_args args{};
};

}  // namespace tandem::test
