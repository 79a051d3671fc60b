// Errors of the Hopper forward: each says what is wrong, leaves the outputs untouched and the CUDA context
// well.
#include <array>
#include <cstddef>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/device_forward.h"

namespace tandem::test {
namespace {

using Member = tandem_tensor tandem_forward_args::*;
constexpr std::array<std::pair<const char*, Member>, 4> matrices = {{{"q", &tandem_forward_args::q},
                                                                     {"k", &tandem_forward_args::k},
                                                                     {"v", &tandem_forward_args::v},
                                                                     {"o", &tandem_forward_args::o}}};

class HopperForwardErrors : public HopperForward {
 protected:
  void SetUp() override {
    HopperForward::SetUp();
    if (!IsSkipped()) device_.emplace(tensors_);
  }

  static ForwardCase setup() {
    ForwardCase c;
    c.batch = 2, c.q_len = 130, c.k_len = 100, c.q_heads = 2, c.head_dim = 64;
    return c;
  }

  /// That the call fails like this, that nothing was written, and that a right call still succeeds.
  void expect_refused(const tandem_forward_args& args, tandem_status status,
                      const std::string& part_of_message, std::span<std::byte> workspace = {}) {
    EXPECT_EQ(tandem_forward(&args, workspace.data(), workspace.size(), nullptr), status);
    const std::string message = tandem_last_error();
    SCOPED_TRACE("message: " + message);
    EXPECT_NE(message.find(part_of_message), std::string::npos) << part_of_message;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    device_->read_outputs(tensors_);
    EXPECT_TRUE(tensors_.o.untouched() && tensors_.lse.untouched());
    EXPECT_EQ(failure_of(setup()), "");
  }

  ForwardTensors tensors_{setup()};
  std::optional<DeviceForward> device_;
};

TEST_F(HopperForwardErrors, HostMemoryIsRefused) {
  std::vector<std::byte> host(1 << 20);
  void* address = host.data();
  std::size_t space = host.size();
  std::align(256, 1, address, space);
  for (const auto& [name, member] : matrices) {
    tandem_forward_args args = device_->args();
    (args.*member).data = address;
    expect_refused(args, TANDEM_INVALID_ARGUMENT, std::string(name) + ".data is host memory");
  }
  tandem_forward_args args = device_->args();
  args.lse.data = address;
  expect_refused(args, TANDEM_INVALID_ARGUMENT, "lse.data is host memory");
}

TEST_F(HopperForwardErrors, DeviceMemoryIsRefusedWhereTheCpuWasChosen) {
  tandem_forward_args args = device_->args();
  args.backend = TANDEM_BACKEND_CPU;
  std::size_t bytes = 0;
  ASSERT_EQ(tandem_forward_workspace(&args, &bytes), TANDEM_OK) << tandem_last_error();
  std::vector<std::byte> memory(bytes + 256);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  ASSERT_NE(std::align(256, bytes, workspace, space), nullptr);
  expect_refused(args, TANDEM_INVALID_ARGUMENT, "device memory", {static_cast<std::byte*>(workspace), bytes});
}

TEST_F(HopperForwardErrors, MisalignedAddressesAreRefused) {
  for (const auto& [name, member] : matrices) {
    tandem_forward_args args = device_->args();
    (args.*member).data = static_cast<std::byte*>((args.*member).data) + 8;
    expect_refused(args, TANDEM_INVALID_ARGUMENT, std::string(name) + ".data is not aligned");
  }
}

TEST_F(HopperForwardErrors, StridesThatTmaCanNotTakeAreRefused) {
  for (const auto& [name, member] : matrices) {
    tandem_forward_args args = device_->args();
    (args.*member).stride[0] += 4;
    expect_refused(args, TANDEM_UNSUPPORTED, std::string(name) + ".stride[0] is ");
  }
  tandem_forward_args args = device_->args();
  args.k.stride[1] = -args.k.stride[1];
  expect_refused(args, TANDEM_UNSUPPORTED, "k.stride[1] is -");
}

TEST_F(HopperForwardErrors, Fp32IsRefused) {
  tandem_forward_args args = device_->args();
  for (const auto& [name, member] : matrices) {
    (args.*member).dtype = TANDEM_FP32;
    (args.*member).shape[0] = 1;  // elements twice as wide have to stay in the tensors' memory
    (args.*member).shape[1] = 20;
  }
  args.lse.shape[0] = 1;
  args.lse.shape[1] = 20;
  expect_refused(args, TANDEM_UNSUPPORTED, "fp32");
}

}  // namespace
}  // namespace tandem::test
