// Forward problems on the device, called through the C interface as users call it.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <tandem/tandem.h>

#include "tests/gpu/device.h"
#include "tests/support/forward_case.h"

namespace tandem::test {

/// Tests that need a Hopper GPU; skipped where there is none.
class HopperForward : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_no_hopper();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

/// Calls tandem_forward without a workspace, which the Hopper forward does not need.
tandem_status forward_on(cudaStream_t stream, const tandem_forward_args& args);

/// Copies of all cells of a problem's tensors, guards included. Bytes of the copies are those of the
/// originals until `run`.
class DeviceForward {
 public:
  explicit DeviceForward(const ForwardTensors& host);

  const tandem_forward_args& args() const { return call_.args; }
  /// Enqueues; a failure fails the test.
  void run(cudaStream_t stream = nullptr) const;
  void write_inputs(const ForwardTensors& host);
  void write_outputs(const ForwardTensors& host);
  /// Waits for the device and copies all cells of the outputs.
  void read_outputs(ForwardTensors& host) const;

 private:
  DeviceMemory q_, k_, v_, o_, lse_, q_scale_, k_scale_, v_scale_, v_shift_, q_dot_k_shift_, block_counts_,
      block_numbers_;
  ForwardArgs call_;
};

/// All cells of o and lse after one run.
std::vector<std::byte> output_bytes(const ForwardCase& c, cudaStream_t stream = nullptr);

/// Values of o and lse of several runs, to be judged together: where there are few rows, the rounding errors
/// of one run are too few to compare their size with that of another implementation.
struct Pool {
  std::vector<double> result, standard, reference;

  void add(const std::vector<double>& r, const std::vector<double>& s, const std::vector<double>& f);
};

/// Runs the case with as many different values as make enough rows, and compares; "" if all is right. May be
/// called by several threads at once.
std::string failure_of(const ForwardCase& c, cudaStream_t stream = nullptr);

}  // namespace tandem::test
