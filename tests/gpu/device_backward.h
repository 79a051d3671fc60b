// Problems of the backward on the device.
#pragma once

#include <array>
#include <cuda_runtime_api.h>
#include <exception>
#include <gtest/gtest.h>
#include <string>
#include <utility>
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

/// Copies of all cells of a problem's tensors, guards included.
class DeviceGradients {
 public:
  /// Of BackwardTensors, or of those of variable lengths.
  template <typename Tensors>
  explicit DeviceGradients(const Tensors& host)
      : q_(host.q.storage()),
        k_(host.k.storage()),
        v_(host.v.storage()),
        o_(host.o.storage()),
        lse_(host.lse.storage()),
        dout_(host.dout.storage()),
        dlse_(host.dlse.storage()),
        dq_(host.dq.storage()),
        dk_(host.dk.storage()),
        dv_(host.dv.storage()),
        sinks_(host.sinks.storage()),
        dsinks_(host.dsinks.storage()) {}

  /// The host's problem over these copies.
  template <typename Tensors>
  core::BackwardProblem problem_of(const Tensors& host) const {
    core::BackwardProblem p = host.problem();
    p.q = host.q.view_at(q_.data()), p.k = host.k.view_at(k_.data()), p.v = host.v.view_at(v_.data());
    p.o = host.o.view_at(o_.data()), p.lse = host.lse.view_at(lse_.data());
    p.dout = host.dout.view_at(dout_.data());
    if (p.dlse.data != nullptr) p.dlse = host.dlse.view_at(dlse_.data());
    p.dq = host.dq.view_at(dq_.data()), p.dk = host.dk.view_at(dk_.data());
    p.dv = host.dv.view_at(dv_.data());
    if (p.dsinks == nullptr) return p;
    p.sinks = static_cast<const float*>(host.sinks.view_at(sinks_.data()).data);
    p.dsinks = static_cast<float*>(host.dsinks.view_at(dsinks_.data()).data);
    return p;
  }
  /// Waits for the device and copies all cells of the outputs.
  template <typename Tensors>
  void read_outputs(Tensors& host) const {
    dq_.read(host.dq.storage()), dk_.read(host.dk.storage()), dv_.read(host.dv.storage());
    dsinks_.read(host.dsinks.storage());
  }
  /// Copies all cells once more.
  template <typename Tensors>
  void write(const Tensors& host) {
    for (auto [memory, tensor] : {std::pair{&q_, &host.q},
                                  {&k_, &host.k},
                                  {&v_, &host.v},
                                  {&o_, &host.o},
                                  {&lse_, &host.lse},
                                  {&dout_, &host.dout},
                                  {&dq_, &host.dq},
                                  {&dk_, &host.dk},
                                  {&dv_, &host.dv}})
      memory->write(tensor->storage());
  }
  std::array<const DeviceMemory*, 4> outputs() const { return {&dq_, &dk_, &dv_, &dsinks_}; }

 private:
  DeviceMemory q_, k_, v_, o_, lse_, dout_, dlse_, dq_, dk_, dv_, sinks_, dsinks_;
};

/// The copies, and a workspace that holds NaN.
class DeviceBackward {
 public:
  DeviceBackward(const BackwardTensors& host, const backward::Choice& choice);

  /// Enqueues; a failure fails the test.
  void run(cudaStream_t stream = nullptr) const;
  void read_outputs(BackwardTensors& host) const { tensors_.read_outputs(host); }
  /// The same as bytes.
  std::vector<std::byte> output_bytes() const;

 private:
  DeviceGradients tensors_;
  DeviceMemory workspace_;
  core::BackwardProblem problem_;
  backward::Choice choice_;
};

/// Enqueues the problem by the kernels of a choice; a failure fails the test.
void run_backward(const core::BackwardProblem& problem, const backward::Choice& choice,
                  const DeviceMemory& workspace, cudaStream_t stream);

/// Runs the case by the kernels of the choice with as many different values as make enough rows, NaN in what
/// nobody sees, and compares; "" if all is right. May be called by several threads at once.
std::string failure_of(const BackwardCase& c, const backward::Choice& choice, cudaStream_t stream = nullptr);

}  // namespace tandem::test
