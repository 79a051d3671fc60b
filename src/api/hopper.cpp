#include "api/hopper.h"

#include <cstring>

#include "backward/launch.h"
#include "decode/launch.h"
#include "decode/plan.h"
#include "forward/launch.h"
#include "forward/plan.h"
#include "forward/split.h"
#include "hw/cuda/device.h"
#include "merge/launch.h"
#include "merge/plan.h"
#include "quantize/launch.h"
#include "quantize/plan.h"

namespace tandem::api {

bool hopper_built() { return true; }
core::Status hopper_usable() { return hw::device_usable(); }
core::Status hopper_supports(const core::ForwardProblem& problem) { return forward::supported(problem); }
std::size_t hopper_workspace(const core::ForwardProblem& problem) {
  return forward::num_splits(problem) > 1 ? forward::split_workspace_bytes(problem)
                                          : forward::workspace_bytes(problem);
}
core::Status launch_hopper(const core::ForwardProblem& problem, void* workspace, void* stream) {
  if (workspace == nullptr || forward::num_splits(problem) == 1)
    return forward::launch(problem, workspace, stream);
  const forward::SplitForward steps = forward::split(problem, workspace);
  if (core::Status s = forward::launch(steps.parts, steps.parts_workspace, stream); !s.ok()) return s;
  return merge::launch(steps.merge, stream);
}
core::Status hopper_supports(const core::BackwardProblem& problem) { return backward::supported(problem); }
std::size_t hopper_workspace(const core::BackwardProblem& problem) {
  return backward::workspace_bytes(problem);
}
core::Status launch_hopper(const core::BackwardProblem& problem, void* workspace, void* stream) {
  return backward::launch(problem, workspace, stream);
}
core::Status hopper_supports(const core::DecodeProblem& problem) { return decode::supported(problem); }
std::size_t hopper_workspace(const core::DecodeProblem& problem) { return decode::workspace_bytes(problem); }
core::Status launch_hopper(const core::DecodeProblem& problem, void* workspace, void* stream) {
  return decode::launch(problem, workspace, stream);
}
std::size_t hopper_plan(const core::DecodeProblem& problem) { return decode::plan_bytes(problem); }
core::Status make_hopper_plan(const core::DecodeProblem& problem, void* plan, void* stream) {
  return decode::make_plan(problem, plan, stream);
}
core::Status hopper_supports(const core::MergeProblem& problem) { return merge::supported(problem); }
core::Status launch_hopper(const core::MergeProblem& problem, void* stream) {
  return merge::launch(problem, stream);
}
core::Status hopper_supports(const core::QuantizeProblem& problem) { return quantize::supported(problem); }
core::Status launch_hopper(const core::QuantizeProblem& problem, void* stream) {
  return quantize::launch(problem, stream);
}
bool is_device_memory(const void* address) { return hw::is_device_memory(address); }

void describe_device(tandem_info* info) {
  const hw::DeviceDescription device = hw::describe_device();
  static_assert(sizeof(info->device_name) == sizeof(device.name));
  std::memcpy(info->device_name, device.name, sizeof(device.name));
  info->device_sm_count = device.sm_count;
}

}  // namespace tandem::api
