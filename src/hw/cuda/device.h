// The current CUDA device, and what launchers of kernels ask of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>
#include <string>

#include "core/problem.h"
#include "core/status.h"
#include "hw/launch.h"
#include "hw/tensor_map.h"
#include "hw/types.h"

namespace tandem::hw {

struct Device {
  int ordinal, major, minor, sm_count;
};

/// The current device, if it is a Hopper GPU with a driver that can run the kernels; else why not.
core::Status hopper_device(Device* device);
core::Status device_usable();

/// Name and multiprocessors of the current device; empty and 0 if there is none.
struct DeviceDescription {
  char name[256];
  int sm_count;
};
DeviceDescription describe_device();

/// Whether the address is device or managed memory; pinned host memory is not, though the GPU can reach it.
bool is_device_memory(const void* address);

/// Whether the current device can reach the memory.
bool is_reachable(const void* address);

/// OK if the GPU can reach what the argument `name` points to, or it is null.
core::Status check_memory(const char* name, const void* address);

/// Encodes the map that tensor_map_request asks for; `name` is the argument's.
core::Status encode(const char* name, const core::Tensor& tensor, BoxRows box, TensorMap* map);

/// Lets a kernel have so much dynamic shared memory on the current device, whose ordinal is given. Asks the
/// runtime once for each kernel and device, since that costs as much as a launch.
core::Status allow_shared_bytes(const void* kernel, int ordinal, int bytes);

/// `name`: the kernel's, for errors; `arguments`: the struct that is its one parameter.
core::Status enqueue(const char* name, const Launch& launch, const void* arguments, void* stream);

/// A failed call of the runtime as a status. Clears the runtime's last error: what we report must not surface
/// again in the caller's next check.
core::Status device_error(const std::string& what, cudaError_t error);

}  // namespace tandem::hw
