#include "api/hopper.h"

#include <cstring>

#include "forward/launch.h"

namespace tandem::api {

bool hopper_built() { return true; }
core::Status hopper_usable() { return forward::device_usable(); }
core::Status hopper_supports(const core::ForwardProblem& problem) { return forward::supported(problem); }
core::Status launch_hopper(const core::ForwardProblem& problem, void* stream) {
  return forward::launch(problem, stream);
}
bool is_device_memory(const void* address) { return forward::is_device_memory(address); }

void describe_device(tandem_info* info) {
  const forward::DeviceDescription device = forward::describe_device();
  static_assert(sizeof(info->device_name) == sizeof(device.name));
  std::memcpy(info->device_name, device.name, sizeof(device.name));
  info->device_sm_count = device.sm_count;
}

}  // namespace tandem::api
