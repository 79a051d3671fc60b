#include "apps/sim/forward_sim.h"

#include <stdexcept>

#include "apps/sim/forward_kernels.h"
#include "forward/plan.h"

namespace tandem::sim {

namespace {

const Kernel& find_kernel(const forward::ForwardVariant& variant) {
  const Kernel* found = nullptr;
  forward::for_each_built([&]<int head_dim, forward::Purpose purpose>() {
    for (const Kernel& kernel : kernels<head_dim, purpose>()) {
      if (kernel.variant == variant) found = &kernel;
    }
  });
  if (found == nullptr)
    throw std::invalid_argument("this variant is not compiled for the simulator: " + name_of(variant));
  return *found;
}

hw::sim::LaunchConfig launch_config(const core::ForwardProblem& problem,
                                    const forward::ForwardVariant& variant, const Machine& machine) {
  hw::sim::LaunchConfig config = machine.launch_config();
  config.threads = variant.threads();
  config.shared_bytes = find_kernel(variant).shared_bytes;
  config.buffers = {buffer_of(problem.q, "q", false), buffer_of(problem.k, "k", false),
                    buffer_of(problem.v, "v", false), unwritten(buffer_of(problem.o, "o", true))};
  if (problem.lse.data != nullptr) config.buffers.push_back(unwritten(buffer_of(problem.lse, "lse", true)));
  return config;
}

}  // namespace

std::vector<forward::ForwardVariant> forward_variants() {
  std::vector<forward::ForwardVariant> variants;
  forward::for_each_built([&variants]<int head_dim, forward::Purpose purpose>() {
    for (const forward::ForwardVariant& variant : forward::built<head_dim, purpose>())
      variants.push_back(variant);
  });
  return variants;
}

std::string name_of(const forward::ForwardVariant& v) {
  static constexpr const char* overlaps[] = {"serial", "two-stage", "three-stage"};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim) +
         (v.mask == forward::MaskKind::prefix ? " prefix" : " band") + (v.softcap ? " softcap " : " ") +
         overlaps[static_cast<int>(v.overlap)] +
         (v.turn == forward::TurnPolicy::pingpong ? " pingpong " : " ") + std::to_string(v.block_m) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.kv_stages);
}

hw::sim::Report simulate_forward(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                                 const Machine& machine) {
  hw::sim::LaunchConfig config = launch_config(problem, variant, machine);
  config.blocks = forward::grid_size(problem, variant, machine.multiprocessors);
  if (config.blocks == 0) return {};
  config.early = true;
  forward::ForwardArguments args = forward::make_arguments(problem, variant, config.blocks);
  const forward::MapBoxes boxes = forward::map_boxes(variant, args.packing);
  args.q = encode(problem.q, boxes.q);
  args.k = problem.k_len() == 0 ? args.q : encode(problem.k, boxes.keys);
  args.v = problem.k_len() == 0 ? args.q : encode(problem.v, boxes.keys);
  const Kernel& kernel = find_kernel(variant);
  if (kernel.stages_output) args.o_boxes = encode(problem.o, boxes.o);
  return hw::sim::launch(config, [&args, &kernel] { kernel.body(args); });
}

}  // namespace tandem::sim
