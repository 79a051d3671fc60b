// Host side of the Hopper forward: which variant serves a problem, and its launch.
#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::forward {

/// OK if the current device is a Hopper GPU with a driver that can run the kernels; else why not.
core::Status device_usable();

/// Name and multiprocessors of the current device; empty and 0 if there is none.
struct DeviceDescription {
  char name[256];
  int sm_count;
};
DeviceDescription describe_device();

/// Whether the address is device or managed memory; pinned host memory is not, though the GPU can reach it.
bool is_device_memory(const void* address);

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::ForwardProblem& problem);

/// Enqueues the forward on `stream` (a cudaStream_t). One kernel, no synchronisation, no allocation.
core::Status launch(const core::ForwardProblem& problem, void* stream);

}  // namespace tandem::forward
