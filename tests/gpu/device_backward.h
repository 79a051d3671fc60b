// Problems of the backward on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <exception>
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

/// Runs `failure_of_number` for 0 ... count - 1 by all threads; the failures, one line each.
template <typename FailureOf>
std::string failures_among(int count, const FailureOf& failure_of_number) {
  std::vector<std::string> failures(static_cast<std::size_t>(count));
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < count; ++i) {
    try {
      failures[static_cast<std::size_t>(i)] = failure_of_number(i);
    } catch (const std::exception& error) {
      failures[static_cast<std::size_t>(i)] = error.what();
    }
  }
  std::string all;
  for (const std::string& failure : failures) all += failure.empty() ? "" : failure + "\n";
  return all;
}

/// "bf16_d64_softcap_keys_pipelined".
std::string backward_variant_name(const testing::TestParamInfo<backward::BackwardVariant>& info);

/// NaN.
DeviceMemory poisoned_memory(std::size_t bytes);

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
