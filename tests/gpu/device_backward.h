// Problems of the backward on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backward/plan.h"
#include "tests/gpu/device.h"
#include "tests/support/backward_case.h"

namespace tandem::test {

/// Tests that need a Hopper GPU; skipped where there is none.
class HopperBackward : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_no_hopper();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

/// Copies of all cells of a problem's tensors, guards included, and a workspace that holds NaN.
class DeviceBackward {
 public:
  DeviceBackward(const BackwardTensors& host, const backward::Choice& choice);

  /// Enqueues; a failure fails the test.
  void run(cudaStream_t stream = nullptr) const;
  /// Waits for the device and copies all cells of the outputs.
  void read_outputs(BackwardTensors& host) const;
  /// The same as bytes.
  std::vector<std::byte> output_bytes() const;

 private:
  DeviceMemory q_, k_, v_, o_, lse_, dout_, dlse_, dq_, dk_, dv_, sinks_, dsinks_, workspace_;
  core::BackwardProblem problem_;
  backward::Choice choice_;
};

/// Runs the case by the kernels of the choice with as many different values as make enough rows, NaN in what
/// nobody sees, and compares; "" if all is right. May be called by several threads at once.
std::string failure_of(const BackwardCase& c, const backward::Choice& choice, cudaStream_t stream = nullptr);

}  // namespace tandem::test
