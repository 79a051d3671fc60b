#include "api/hopper.h"

#include <cstring>
#include <optional>
#include <utility>

#include "api/hopper_decode.h"
#include "api/hopper_mixed.h"
#include "api/hopper_prefix.h"
#include "api/hopper_route.h"
#include "api/message.h"
#include "api/step_as_forward.h"
#include "backward/launch.h"
#include "decode/few_queries.h"
#include "decode/launch.h"
#include "decode/plan.h"
#include "forward/launch.h"
#include "forward/plan.h"
#include "forward/split.h"
#include "hw/cuda/device.h"
#include "launch/chip.h"
#include "launch/tape.h"
#include "merge/launch.h"
#include "merge/plan.h"
#include "quantize/launch.h"
#include "quantize/plan.h"

namespace tandem::api {
namespace {

using core::DecodeProblem;
using core::ForwardProblem;
using core::Status;

template <typename Family>
Status check_linked(const typename Family::Variant& variant) {
  return launch::known_chip_kernel<Family>(variant) != nullptr ? Status()
                                                               : launch::check_linked<Family>(variant);
}

// ---- The forward goes one of four ways

Status supports_forward(const ForwardProblem& given) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (Status s = forward_supported(problem); !s.ok()) return s;
  return check_linked<forward::Family>(*forward::choose_variant(problem));
}

/// Variable lengths where some sequences may have few queries.
Status run_mixed(const ForwardProblem& problem, const FewQueries& few, void* workspace, void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of_mixed(problem, few, workspace)); !s.ok()) return s;
  MixedLaunches all = launches_of(problem, few, chip.sm_count(), workspace);
  return chip.run_all(std::move(all.clear), std::move(all.append), std::move(all.list), std::move(all.step),
                      std::move(all.forward), std::move(all.combine));
}

Status plan_mixed(const ForwardProblem& problem, const FewQueries& few, void* plan, void* stream) {
  launch::Chip chip(stream);
  const std::size_t bytes = mixed_plan_bytes(problem, few);
  if (Status s = chip.open(forward::memory_of_planning(problem, plan, bytes)); !s.ok()) return s;
  PlanLaunches all = planning_launches_of(problem, few, chip.sm_count(), plan);
  return chip.run_all(std::move(all.clear), std::move(all.list));
}

std::size_t forward_plan(const ForwardProblem& given) {
  return forward_plan_bytes(forward::for_kernels(given));
}

Status make_forward_plan(const ForwardProblem& given, void* plan, void* stream) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (const auto few = few_queries_of(problem)) return plan_mixed(problem, *few, plan, stream);
  return forward::make_plan(problem, plan, stream);
}

std::size_t forward_workspace(const ForwardProblem& given) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (const auto few = few_queries_of(problem)) return mixed_workspace_bytes(problem, *few);
  const Route route = route_of(problem);
  if (route.way == Way::step) return decode::workspace_bytes(*decode::step_of(problem));
  return route.way == Way::parts ? forward::split_workspace_bytes(problem, route.splits)
                                 : forward::workspace_bytes(problem);
}

Status run_forward(const ForwardProblem& given, void* workspace, void* stream) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (Status s = check_forward_plan(problem); !s.ok()) return s;
  if (const auto few = few_queries_of(problem)) return run_mixed(problem, *few, workspace, stream);
  const Route route = workspace == nullptr ? Route{} : route_of(problem);
  if (route.way == Way::step)
    return decode::launch_on_any_workspace(*decode::step_of(problem), workspace, stream);
  if (route.way == Way::one_kernel) return forward::launch(problem, workspace, stream);
  const forward::SplitForward steps = forward::split(problem, route.splits, workspace);
  if (Status s = forward::launch(steps.parts, steps.parts_workspace, stream); !s.ok()) return s;
  return merge::launch(steps.merge, stream);
}

/// Without any workspace keys are not split. Those who know sinks and the like read a list, which lies there.
bool forward_runs_without(const ForwardProblem& p) { return !p.needs_list(); }

// ---- Decoding steps go one of three

Status supports_decode(const DecodeProblem& step) {
  if (Status s = step_supported(step); !s.ok()) return s;
  if (goes_as_forward(step)) return check_linked<forward::Family>(*forward::choose_variant(as_forward(step)));
  if (const auto shared = shared_prefixes_of(step)) return check_linked<decode::Family>(*shared->variant);
  return check_linked<decode::Family>(*decode::choose_variant(step));
}

std::size_t decode_workspace(const DecodeProblem& step) {
  if (const auto shared = shared_prefixes_of(step)) return shared_workspace_bytes(step, *shared);
  return step_workspace_bytes(step);
}

/// Sequences share prefixes.
Status run_shared(const DecodeProblem& step, const decode::SharedStep& shared, void* workspace,
                  void* stream) {
  launch::Chip chip(stream);
  if (Status s = chip.open(memory_of_shared(step, shared, workspace)); !s.ok()) return s;
  SharedLaunches all = launches_of(step, shared, chip.sm_count(), workspace);
  return chip.run_all(std::move(all.append), std::move(all.list), std::move(all.step), std::move(all.combine),
                      std::move(all.merge));
}

Status make_decode_plan(const DecodeProblem& step, void* plan, void* stream) {
  if (step.lengths == nullptr)
    return invalid("cache.lengths is NULL, but a plan is made from the lengths; pass them in device memory");
  return decode::make_plan(step, plan, stream);
}

/// Names memory out of reach as the step's caller does; the forward's names are others.
Status check_reach(const DecodeProblem& step) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (const core::ListedTensor& tensor : tensors_of(step))
    if (Status s = hw::check_memory(tensor.address_name().c_str(), tensor.region.data); !s.ok()) return s;
  return {};
}

Status run_decode(const DecodeProblem& step, void* workspace, void* stream) {
  if (const auto shared = shared_prefixes_of(step)) return run_shared(step, *shared, workspace, stream);
  if (Status s = check_step_plan(step); !s.ok()) return s;
  if (!goes_as_forward(step)) return decode::launch(step, workspace, stream);
  if (Status s = check_reach(step); !s.ok()) return s;
  return forward::launch(as_forward(step), workspace_of_forward(workspace), stream);
}

// ---- Others

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

// ---- Calls that are made again

thread_local launch::Tapes tapes;

/// The current device as a tape asks for it.
struct Chip {
  int device;
  void* stream;

  int ordinal() const { return device; }
  bool reaches(const void* address) const { return hw::is_reachable(address); }
  Status enqueue(const char* name, const hw::Launch& launch, const void* arguments) const {
    return hw::enqueue(name, launch, arguments, stream);
  }
};

bool repeat(const core::CallKey& call, void* stream, Status* status) {
  const launch::Tape* tape = tapes.find(call);
  hw::Device device;
  if (tape == nullptr || !hw::hopper_device(&device).ok()) return false;
  const Chip chip{device.ordinal, stream};
  if (!tape->holds(chip)) return false;
  *status = tape->play(chip);
  return true;
}

constinit const Hopper built = {
    .forward = {supports_forward, forward_workspace, run_forward, forward_plan, make_forward_plan,
                forward_runs_without},
    .backward = {backward::supported, backward::workspace_bytes, backward::launch},
    .decode = {supports_decode, decode_workspace, run_decode, step_plan_bytes, make_decode_plan},
    .merge = {.supports = merge::supported, .run = without_workspace<merge::launch>},
    .quantize = {.supports = quantize::supported, .run = without_workspace<quantize::launch>},
    .usable = hw::device_usable,
    .describe_device = describe_device,
    .is_device_memory = hw::is_device_memory,
    .explain = explain,
    .repeat = repeat,
    .begin_recording = [](const core::CallKey& call) { tapes.begin(call); },
    .end_recording = [](bool ok) { tapes.end(ok); }};

}  // namespace

constinit const Hopper* const hopper = &built;

}  // namespace tandem::api
