#include "api/hopper.h"

#include <cstring>

#include "api/hopper_route.h"
#include "backward/launch.h"
#include "decode/few_queries.h"
#include "decode/launch.h"
#include "decode/plan.h"
#include "forward/launch.h"
#include "forward/plan.h"
#include "forward/split.h"
#include "hw/cuda/device.h"
#include "launch/chip_kernels.h"
#include "merge/launch.h"
#include "merge/plan.h"
#include "quantize/launch.h"
#include "quantize/plan.h"

namespace tandem::api {

bool hopper_built() { return true; }
core::Status hopper_usable() { return hw::device_usable(); }
core::Status hopper_supports(const core::ForwardProblem& given) {
  const core::ForwardProblem problem = forward::for_kernels(given);
  if (core::Status s = forward::supported(problem); !s.ok()) return s;
  return launch::check_linked<forward::Family>(*forward::choose_variant(problem));
}
std::size_t hopper_workspace(const core::ForwardProblem& given) {
  const core::ForwardProblem problem = forward::for_kernels(given);
  const Route route = route_of(problem);
  if (route.way == Way::step) return decode::workspace_bytes(*decode::step_of(problem));
  return route.way == Way::parts ? forward::split_workspace_bytes(problem, route.splits)
                                 : forward::workspace_bytes(problem);
}
core::Status launch_hopper(const core::ForwardProblem& given, void* workspace, void* stream) {
  const core::ForwardProblem problem = forward::for_kernels(given);
  const Route route = workspace == nullptr ? Route{} : route_of(problem);
  if (route.way == Way::step)
    return decode::launch_on_any_workspace(*decode::step_of(problem), workspace, stream);
  if (route.way == Way::one_kernel) return forward::launch(problem, workspace, stream);
  const forward::SplitForward steps = forward::split(problem, route.splits, workspace);
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
core::Status hopper_supports(const core::DecodeProblem& problem) {
  if (core::Status s = decode::supported(problem); !s.ok()) return s;
  return launch::check_linked<decode::Family>(*decode::choose_variant(problem));
}
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
