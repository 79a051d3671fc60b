#include "apps/sim/merge_sim.h"

#include <utility>

#include "core/dtype.h"
#include "merge/kernel.h"
#include "merge/plan.h"

namespace tandem::sim {
namespace {

using core::MergeProblem;

constexpr auto variants = merge::all_variants();

template <std::size_t... i>
void run(const merge::MergeVariant& variant, const merge::MergeArguments& args, std::index_sequence<i...>) {
  ((variant == variants[i] ? merge::merge_kernel<variants[i]>(args) : void()), ...);
}

/// From the first element of the first part to the last of the last, whose strides are not negative.
hw::sim::Buffer parts_of(const core::Tensor& first, std::int64_t parts, std::int64_t stride,
                         const char* name) {
  hw::sim::Buffer buffer = buffer_of(first, name, false);
  buffer.bytes =
      parts == 0 ? 0
                 : buffer.bytes + static_cast<std::size_t>((parts - 1) * stride) * core::size_of(first.dtype);
  return buffer;
}

}  // namespace

std::string name_of(const merge::MergeVariant& variant) {
  return std::string(core::name_of(variant.in)) + " to " + core::name_of(variant.out);
}

hw::sim::Report simulate_merge(const MergeProblem& problem, const Machine& machine) {
  const merge::MergeArguments args = merge::make_arguments(problem);
  hw::sim::LaunchConfig config = machine.launch_config();
  config.blocks = merge::blocks_of(args);
  if (config.blocks == 0) return {};
  config.threads = merge::threads;
  config.buffers = {parts_of(problem.o_parts, problem.parts, problem.o_part_stride, "o_parts"),
                    parts_of(problem.lse_parts, problem.parts, problem.lse_part_stride, "lse_parts"),
                    buffer_of(problem.o, "o", true)};
  if (problem.lse.data != nullptr) config.buffers.push_back(buffer_of(problem.lse, "lse", true));
  const merge::MergeVariant variant{problem.o_parts.dtype, problem.o.dtype};
  return hw::sim::launch(config, [&] { run(variant, args, std::make_index_sequence<variants.size()>{}); });
}

}  // namespace tandem::sim
