#include "backward/launch.h"

#include <cstdint>
#include <string>
#include <utility>

#include "backward/kernels.h"
#include "backward/sums.h"
#include "hw/cuda/device.h"
#include "hw/tensor_map.h"

namespace tandem::backward {
namespace {

using core::Status;

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

const CompiledKernel* find_kernel(const BackwardVariant& variant) {
  const CompiledKernel* found = nullptr;
  for_each_built([&]<int head_dim>() {
    if (head_dim != variant.head_dim) return;
    for (const CompiledKernel& kernel : kernels<head_dim>()) {
      if (kernel.variant == variant) found = &kernel;
    }
  });
  return found;
}

const CompiledHelpers* find_helpers(const BackwardVariant& variant) {
  const CompiledHelpers* found = nullptr;
  for_each_built([&]<int head_dim>() {
    if (head_dim != variant.head_dim) return;
    for (const CompiledHelpers& each : helpers<head_dim>()) {
      if (each.operand == variant.operand) found = &each;
    }
  });
  return found;
}

/// One call on its way: a cropped problem, its workspace and stream.
struct Call {
  const core::BackwardProblem& problem;
  const Choice& choice;
  hw::Device device;
  Statistics statistics;
  float* dq_sums;  ///< nullptr: nobody adds
  void* stream;

  template <typename Arguments>
  Status enqueue_helper(const char* name, const void* handle, std::int64_t blocks, Arguments args) const {
    void* parameters[] = {&args};
    return hw::enqueue(name, {handle, static_cast<int>(blocks), small_threads, 0, true}, parameters, stream);
  }

  Status prepare() const {
    return enqueue_helper("the kernel before the backward", find_helpers(choice.keys)->prepare,
                          row_blocks(problem), make_prepare_arguments(problem, statistics, dq_sums));
  }

  Status products(const BackwardVariant& variant) const {
    const CompiledKernel* kernel = find_kernel(variant);
    BackwardArguments args = make_arguments(problem, variant, statistics, device.sm_count);
    const MapBoxes boxes = map_boxes(variant);
    if (Status s = hw::encode("q", problem.q, boxes.queries, &args.q); !s.ok()) return s;
    if (Status s = hw::encode("dout", problem.dout, boxes.queries, &args.dout); !s.ok()) return s;
    if (Status s = hw::encode("k", problem.k, boxes.keys, &args.k); !s.ok()) return s;
    if (Status s = hw::encode("v", problem.v, boxes.keys, &args.v); !s.ok()) return s;
    if (dq_sums != nullptr) {
      const core::Tensor sums = sums_tensor(problem, variant, dq_sums);
      if (Status s = hw::encode("workspace", sums, {part_box_rows}, &args.dq_sums); !s.ok()) return s;
    }
    if (Status s = hw::allow_shared_bytes(kernel->handle, device.ordinal, kernel->shared_bytes); !s.ok())
      return s;
    void* parameters[] = {&args};
    const auto blocks = static_cast<int>(grid_of(problem, variant, device.sm_count));
    return hw::enqueue("a kernel of the backward",
                       {kernel->handle, blocks, variant.threads, kernel->shared_bytes, true}, parameters,
                       stream);
  }

  Status finish() const {
    return enqueue_helper("the kernel after the backward", find_helpers(choice.keys)->finish,
                          row_blocks(problem), make_finish_arguments(problem, dq_sums));
  }

  Status clear(const core::Tensor& gradient, std::int64_t rows) const {
    const ClearArguments args = make_clear_arguments(gradient, rows);
    if (args.count == 0) return {};
    return enqueue_helper("the kernel that clears gradients", find_helpers(choice.keys)->clear,
                          clear_blocks(args), args);
  }

  /// All of a problem that has pairs.
  Status gradients() const {
    if (Status s = prepare(); !s.ok()) return s;
    if (Status s = products(choice.keys); !s.ok()) return s;
    return choice.adds_dq() ? finish() : products(choice.queries);
  }
};

}  // namespace

Status supported(const core::BackwardProblem& problem) {
  const Choice choice = choose(problem);
  if (!choice.found) return no_variant(problem);
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"k", &problem.k},
                              {"v", &problem.v},
                              {"o", &problem.o},
                              {"dout", &problem.dout},
                              {"dq", &problem.dq},
                              {"dk", &problem.dk},
                              {"dv", &problem.dv}}) {
    if (Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  const std::int64_t most_rows = max_tiles / (part_box_rows * 2) * part_rows;
  if (problem.batch() * problem.q_heads() * (problem.q_len() + query_padding) >= most_rows ||
      problem.batch() * problem.q_heads() * (problem.k_len() + query_padding) >= most_rows) {
    return {TANDEM_UNSUPPORTED, "batch * heads * (length + 128) exceeds 2^28 rows; split the batch"};
  }
  return {};
}

std::size_t workspace_bytes(const core::BackwardProblem& problem) {
  return workspace_layout(crop(problem).problem, choose(problem)).end;
}

Status launch(const core::BackwardProblem& problem, void* workspace, void* stream) {
  return launch_with(problem, choose(problem), workspace, stream);
}

Status launch_with(const core::BackwardProblem& problem, const Choice& choice, void* workspace,
                   void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (auto [name, data] : {std::pair{"q.data", problem.q.data},
                            {"k.data", problem.k.data},
                            {"v.data", problem.v.data},
                            {"o.data", problem.o.data},
                            {"lse.data", problem.lse.data},
                            {"dout.data", problem.dout.data},
                            {"dlse.data", problem.dlse.data},
                            {"dq.data", problem.dq.data},
                            {"dk.data", problem.dk.data},
                            {"dv.data", problem.dv.data},
                            {"workspace", workspace}}) {
    if (Status s = hw::check_memory(name, data); !s.ok()) return s;
  }
  const Cropped cropped = crop(problem);
  const WorkspaceLayout layout = workspace_layout(cropped.problem, choice);
  auto* base = static_cast<char*>(workspace);
  const auto at = [base](std::size_t offset) { return reinterpret_cast<float*>(base + offset); };
  const Call call{cropped.problem,
                  choice,
                  device,
                  {at(layout.lse_log2), at(layout.delta)},
                  choice.adds_dq() ? at(layout.dq_sums) : nullptr,
                  stream};
  if (!cropped.empty()) {
    if (Status s = call.gradients(); !s.ok()) return s;
  }
  if (Status s = call.clear(problem.dq, cropped.unseeing_queries); !s.ok()) return s;
  if (Status s = call.clear(problem.dk, cropped.unseen_keys); !s.ok()) return s;
  return call.clear(problem.dv, cropped.unseen_keys);
}

}  // namespace tandem::backward
