// Decoding steps on the device, called through the C interface as users call it.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include <tandem/tandem.h>

#include "tests/gpu/device.h"
#include "tests/support/decode_case.h"

namespace tandem::test {

/// Tests that need a Hopper GPU; skipped where there is none.
class HopperDecode : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_no_hopper();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

/// A workspace that serves one call after another: zeroed once, never again.
class DecodeWorkspace {
 public:
  /// At least `bytes`. Where it has to grow, the old one goes: that counts as a new one.
  std::byte* of(std::size_t bytes);
  std::size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

 private:
  std::optional<DeviceMemory> memory_;
};

/// Copies of all that a step reads and writes, guards included.
class DeviceDecode {
 public:
  explicit DeviceDecode(const DecodeTensors& host);

  const DecodeArgs& call() const { return call_; }
  tandem_status run(DecodeWorkspace& workspace, cudaStream_t stream = nullptr) const;
  /// Has a plan made and the calls to come follow it.
  void make_plan(cudaStream_t stream = nullptr);
  void write(const DecodeTensors& host);
  void write_lengths(const std::vector<std::int32_t>& lengths);
  /// Waits for the device and copies all cells of the outputs and the cache.
  void read(DecodeTensors& host) const;

 private:
  DeviceMemory q_, qv_, k_cache_, v_cache_, k_new_, v_new_, o_, lse_, cos_, sin_;
  DeviceMemory page_table_, lengths_, batch_index_, sinks_, k_scale_, v_scale_;
  DeviceMemory prefix_sequences_, prefix_lengths_;
  std::optional<DeviceMemory> plan_;
  DecodeArgs call_;
};

/// Runs the case with as many different values as make enough rows, and compares; "" if all is right.
std::string failure_of(const DecodeCase& c, DecodeWorkspace& workspace, cudaStream_t stream = nullptr);

/// What is wrong with the step's result; "" if nothing is.
std::string difference(const DecodeTensors& after, const DecodeTensors& before);

}  // namespace tandem::test
