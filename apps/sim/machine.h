// What the launches on the software Hopper have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "hw/sim/machine.h"
#include "hw/tensor_map.h"

namespace tandem::sim {

/// How the software Hopper runs a launch.
struct Machine {
  int multiprocessors = 2;  ///< blocks of the persistent grid
  bool long_steps = false;  ///< decode: takes every step that may be one for a long one
  hw::sim::Policy policy = hw::sim::Policy::eager;
  std::uint64_t seed = 1;
  std::string replay;               ///< the command that repeats the launch, for the report
  hw::sim::Trace* trace = nullptr;  ///< where given, what happened when

  /// A launch that is run so; its size and its buffers are the kernel's.
  hw::sim::LaunchConfig launch_config() const;
};

/// The map that the launcher makes of a tensor.
hw::TensorMap encode(const core::Tensor& tensor, hw::BoxRows box);

/// From the first to the last element of a tensor, whose strides are not negative.
hw::sim::Buffer buffer_of(const core::Tensor& tensor, const char* name, bool writable);
/// What a kernel may touch of a call's memory.
std::vector<hw::sim::Buffer> buffers_of(const core::TensorList& tensors);
/// Of a buffer that the launch is the first to write.
hw::sim::Buffer unwritten(hw::sim::Buffer buffer);

}  // namespace tandem::sim
