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
namespace {

using core::DecodeProblem;
using core::ForwardProblem;
using core::Status;

// ---- The forward goes one of three ways

Status supports_forward(const ForwardProblem& given) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (Status s = forward::supported(problem); !s.ok()) return s;
  return launch::check_linked<forward::Family>(*forward::choose_variant(problem));
}

std::size_t forward_workspace(const ForwardProblem& given) {
  const ForwardProblem problem = forward::for_kernels(given);
  const Route route = route_of(problem);
  if (route.way == Way::step) return decode::workspace_bytes(*decode::step_of(problem));
  return route.way == Way::parts ? forward::split_workspace_bytes(problem, route.splits)
                                 : forward::workspace_bytes(problem);
}

Status run_forward(const ForwardProblem& given, void* workspace, void* stream) {
  const ForwardProblem problem = forward::for_kernels(given);
  const Route route = workspace == nullptr ? Route{} : route_of(problem);
  if (route.way == Way::step)
    return decode::launch_on_any_workspace(*decode::step_of(problem), workspace, stream);
  if (route.way == Way::one_kernel) return forward::launch(problem, workspace, stream);
  const forward::SplitForward steps = forward::split(problem, route.splits, workspace);
  if (Status s = forward::launch(steps.parts, steps.parts_workspace, stream); !s.ok()) return s;
  return merge::launch(steps.merge, stream);
}

/// Without any workspace keys are not split. Sinks need it: those who know them read a list.
bool forward_runs_without(const ForwardProblem& p) { return !p.varlen.given && p.sinks == nullptr; }

// ---- Others

Status supports_decode(const DecodeProblem& problem) {
  if (Status s = decode::supported(problem); !s.ok()) return s;
  return launch::check_linked<decode::Family>(*decode::choose_variant(problem));
}

/// A launch that takes no workspace, as a Backend's `run`.
template <auto launch, typename Problem>
Status without_workspace(const Problem& problem, void* /*workspace*/, void* stream) {
  return launch(problem, stream);
}

void describe_device(tandem_info* info) {
  const hw::DeviceDescription device = hw::describe_device();
  static_assert(sizeof(info->device_name) == sizeof(device.name));
  std::memcpy(info->device_name, device.name, sizeof(device.name));
  info->device_sm_count = device.sm_count;
}

constinit const Hopper built = {
    .forward = {supports_forward, forward_workspace, run_forward, forward_runs_without},
    .backward = {backward::supported, backward::workspace_bytes, backward::launch},
    .decode = {supports_decode, decode::workspace_bytes, decode::launch},
    .merge = {.supports = merge::supported, .run = without_workspace<merge::launch>},
    .quantize = {.supports = quantize::supported, .run = without_workspace<quantize::launch>},
    .usable = hw::device_usable,
    .describe_device = describe_device,
    .is_device_memory = hw::is_device_memory,
    .explain = explain,
    .plan_bytes = decode::plan_bytes,
    .make_plan = decode::make_plan};

}  // namespace

constinit const Hopper* const hopper = &built;

}  // namespace tandem::api
