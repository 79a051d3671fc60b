#include "apps/sim/forward_sim.h"

#include <stdexcept>

#include "apps/sim/forward_kernels.h"
#include "forward/plan.h"
#include "forward/tile_list.h"

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

void add_varlen_buffers(const core::Varlen& varlen, hw::sim::LaunchConfig* config) {
  const auto add = [config](const std::int32_t* words, std::int64_t count, const char* name) {
    if (words == nullptr) return;
    config->buffers.push_back({words, static_cast<std::size_t>(count) * sizeof *words, name, false});
  };
  add(varlen.cu_seqlens_q, varlen.sequences + 1, "cu_seqlens_q");
  add(varlen.cu_seqlens_k, varlen.sequences + 1, "cu_seqlens_k");
  add(varlen.seqused_k, varlen.sequences, "seqused_k");
  add(varlen.page_table, (varlen.sequences - 1) * varlen.page_table_stride + varlen.pages_per_sequence,
      "page_table");
}

hw::sim::LaunchConfig launch_config(const core::ForwardProblem& problem,
                                    const forward::ForwardVariant& variant, const Machine& machine) {
  hw::sim::LaunchConfig config = machine.launch_config();
  config.threads = variant.threads();
  config.shared_bytes = find_kernel(variant).shared_bytes;
  config.buffers = {buffer_of(problem.q, "q", false), buffer_of(problem.k, "k", false),
                    buffer_of(problem.v, "v", false), unwritten(buffer_of(problem.o, "o", true))};
  if (problem.lse.data != nullptr) config.buffers.push_back(unwritten(buffer_of(problem.lse, "lse", true)));
  add_varlen_buffers(problem.varlen, &config);
  return config;
}

/// Runs the kernel that lists the tiles of variable lengths, into `list`.
hw::sim::Report list_tiles(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                           hw::sim::LaunchConfig config, std::vector<std::int32_t>& list,
                           forward::ForwardArguments& args) {
  list.resize(
      static_cast<std::size_t>(forward::tile_list_words(forward::most_listed_tiles(problem, variant))));
  args.varlen.tile_list = list.data();
  config.buffers.push_back(unwritten({list.data(), list.size() * sizeof(std::int32_t), "workspace", true}));
  config.blocks = forward::listing_blocks(problem, variant);
  config.threads = forward::tile_list_threads;
  config.shared_bytes = 0;
  return hw::sim::launch(
      config, [&args, &variant] { forward::list_tiles(args, variant.block_m >> args.packing.log2_heads); });
}

}  // namespace

std::vector<forward::ForwardVariant> forward_variants(forward::Lengths lengths) {
  std::vector<forward::ForwardVariant> variants;
  forward::for_each_built([&]<int head_dim, forward::Purpose purpose>() {
    for (const forward::ForwardVariant& variant : forward::built<head_dim, purpose>())
      if (variant.lengths == lengths) variants.push_back(variant);
  });
  return variants;
}

std::string name_of(const forward::ForwardVariant& v) {
  static constexpr const char* overlaps[] = {"serial", "two-stage", "three-stage"};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim) +
         (v.mask == forward::MaskKind::prefix ? " prefix" : " band") +
         (v.lengths == forward::Lengths::varlen ? " varlen" : "") + (v.softcap ? " softcap " : " ") +
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
  const forward::MapBoxes boxes = forward::map_boxes(problem, variant);
  const bool no_keys = problem.k_len() == 0 || problem.k.shape[0] * problem.k.shape[1] == 0;
  args.q = encode(problem.q, boxes.q);
  args.k = no_keys ? args.q : encode(problem.k, boxes.keys);
  args.v = no_keys ? args.q : encode(problem.v, boxes.keys);
  std::vector<std::int32_t> list;
  if (problem.varlen.given) {
    const hw::sim::Report report = list_tiles(problem, variant, config, list, args);
    if (!report.ok()) return report;
    config.buffers.push_back({list.data(), list.size() * sizeof(std::int32_t), "workspace", false});
  }
  const Kernel& kernel = find_kernel(variant);
  if (kernel.stages_output) args.o_boxes = encode(problem.o, boxes.o);
  return hw::sim::launch(config, [&args, &kernel] { kernel.body(args); });
}

}  // namespace tandem::sim
