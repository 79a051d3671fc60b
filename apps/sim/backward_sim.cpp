#include "apps/sim/backward_sim.h"

#include <functional>
#include <stdexcept>
#include <vector>

#include "apps/sim/backward_kernels.h"
#include "backward/sums.h"

namespace tandem::sim {

namespace {

using backward::BackwardVariant;

const BackwardKernel& find_kernel(const BackwardVariant& variant) {
  const BackwardKernel* found = nullptr;
  backward::for_each_built([&]<int head_dim>() {
    for (const BackwardKernel& kernel : backward_kernels<head_dim>()) {
      if (kernel.variant == variant) found = &kernel;
    }
  });
  if (found == nullptr)
    throw std::invalid_argument("this variant is not compiled for the simulator: " + name_of(variant));
  return *found;
}

const BackwardHelpers& find_helpers(const BackwardVariant& variant) {
  const BackwardHelpers* found = nullptr;
  backward::for_each_built([&]<int head_dim>() {
    if (head_dim != variant.head_dim) return;
    for (const BackwardHelpers& helpers : backward_helpers<head_dim>()) {
      if (helpers.operand == variant.operand) found = &helpers;
    }
  });
  return *found;
}

/// The workspace's parts.
struct Workspace {
  std::vector<std::uint32_t> words;
  backward::Statistics statistics;
  float* dq_sums;

  Workspace(const core::BackwardProblem& problem, const backward::Choice& choice) {
    const backward::WorkspaceLayout layout = backward::workspace_layout(problem, choice);
    constexpr std::size_t alignment = 256, word = sizeof(std::uint32_t);
    constexpr std::uint32_t not_a_number = 0x7fc0dead;
    words.assign((layout.end + alignment) / word, not_a_number);
    const auto address = reinterpret_cast<std::uintptr_t>(words.data());
    char* base = reinterpret_cast<char*>((address + alignment - 1) / alignment * alignment);
    statistics = {reinterpret_cast<float*>(base + layout.lse_log2),
                  reinterpret_cast<float*>(base + layout.delta)};
    dq_sums = choice.adds_dq() ? reinterpret_cast<float*>(base + layout.dq_sums) : nullptr;
  }
};

/// One call: a cropped problem on a machine.
struct Call {
  const core::BackwardProblem& problem;
  const backward::Choice& choice;
  const Machine& machine;
  Workspace workspace;

  /// What every kernel may touch. Which tensors it writes is its own.
  hw::sim::LaunchConfig config(std::int64_t blocks, bool writes_workspace) const {
    hw::sim::LaunchConfig config = machine.launch_config();
    config.blocks = static_cast<int>(blocks);
    config.threads = backward::small_threads;
    config.early = true;
    config.buffers = {{workspace.words.data(), workspace.words.size() * sizeof(std::uint32_t), "workspace",
                       writes_workspace}};
    return config;
  }

  void allow(hw::sim::LaunchConfig& config, const core::Tensor& tensor, const char* name, bool writes) const {
    if (tensor.data != nullptr) config.buffers.push_back(buffer_of(tensor, name, writes));
  }

  hw::sim::Report prepare() const {
    hw::sim::LaunchConfig launched = config(backward::row_blocks(problem), true);
    allow(launched, problem.o, "o", false);
    allow(launched, problem.dout, "dout", false);
    allow(launched, problem.lse, "lse", false);
    allow(launched, problem.dlse, "dlse", false);
    const auto args = backward::make_prepare_arguments(problem, workspace.statistics, workspace.dq_sums);
    const auto body = find_helpers(choice.keys).prepare;
    return hw::sim::launch(launched, [&] { body(args); });
  }

  hw::sim::Report products(const BackwardVariant& variant) const {
    const BackwardKernel& kernel = find_kernel(variant);
    hw::sim::LaunchConfig launched = config(backward::grid_of(problem, variant, machine.multiprocessors),
                                            variant.dq_sums == backward::DqSums::added);
    launched.threads = variant.threads;
    launched.shared_bytes = kernel.shared_bytes;
    allow(launched, problem.q, "q", false);
    allow(launched, problem.k, "k", false);
    allow(launched, problem.v, "v", false);
    allow(launched, problem.dout, "dout", false);
    allow(launched, problem.dq, "dq", !variant.is_of_keys());
    allow(launched, problem.dk, "dk", variant.is_of_keys());
    allow(launched, problem.dv, "dv", variant.is_of_keys());
    backward::BackwardArguments args =
        backward::make_arguments(problem, variant, workspace.statistics, machine.multiprocessors);
    const backward::MapBoxes boxes = backward::map_boxes(variant);
    args.q = encode(problem.q, boxes.queries);
    args.dout = encode(problem.dout, boxes.queries);
    args.k = encode(problem.k, boxes.keys);
    args.v = encode(problem.v, boxes.keys);
    if (workspace.dq_sums != nullptr)
      args.dq_sums =
          encode(backward::sums_tensor(problem, variant, workspace.dq_sums), {backward::part_box_rows});
    return hw::sim::launch(launched, [&] { kernel.body(args); });
  }

  hw::sim::Report finish() const {
    hw::sim::LaunchConfig launched = config(backward::row_blocks(problem), false);
    allow(launched, problem.dq, "dq", true);
    const auto args = backward::make_finish_arguments(problem, workspace.dq_sums);
    const auto body = find_helpers(choice.keys).finish;
    return hw::sim::launch(launched, [&] { body(args); });
  }

  /// Of a gradient of the problem that was not cropped.
  hw::sim::Report clear(const core::Tensor& gradient, std::int64_t rows) const {
    const backward::ClearArguments args = backward::make_clear_arguments(gradient, rows);
    if (args.count == 0) return {};
    hw::sim::LaunchConfig launched = config(backward::clear_blocks(args), false);
    allow(launched, gradient, "gradient", true);
    const auto body = find_helpers(choice.keys).clear;
    return hw::sim::launch(launched, [&] { body(args); });
  }
};

}  // namespace

std::string name_of(const BackwardVariant& v) {
  static constexpr const char* kernels[] = {"keys_serial", "keys_pipelined", "keys_in_roles", "queries"};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim) +
         (v.softcap ? " softcap " : " ") + kernels[static_cast<int>(v.kernel)] +
         (v.dq_sums == backward::DqSums::added ? " added " : " ") + std::to_string(v.block_m) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.q_stages) + "x" + std::to_string(v.stages);
}

hw::sim::Report simulate_backward(const core::BackwardProblem& problem, const backward::Choice& choice,
                                  const Machine& machine) {
  const backward::Cropped cropped = backward::crop(problem);
  const Call call{cropped.problem, choice, machine, Workspace(cropped.problem, choice)};
  std::vector<std::function<hw::sim::Report()>> kernels;
  if (!cropped.empty()) {
    kernels.emplace_back([&] { return call.prepare(); });
    kernels.emplace_back([&] { return call.products(choice.keys); });
    kernels.emplace_back([&] { return choice.adds_dq() ? call.finish() : call.products(choice.queries); });
  }
  kernels.emplace_back([&] { return call.clear(problem.dq, cropped.unseeing_queries); });
  kernels.emplace_back([&] { return call.clear(problem.dk, cropped.unseen_keys); });
  kernels.emplace_back([&] { return call.clear(problem.dv, cropped.unseen_keys); });
  hw::sim::Report report;
  for (const auto& kernel : kernels) {
    report = kernel();
    if (!report.ok()) break;
  }
  return report;
}

}  // namespace tandem::sim
