#include "forward/launch.h"

#include <cstdint>
#include <string>

#include "forward/kernels.h"
#include "forward/plan.h"
#include "hw/cuda/device.h"
#include "hw/tensor_map.h"

namespace tandem::forward {
namespace {

using core::Status;

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

Status encode_maps(const core::ForwardProblem& problem, const Kernel& kernel, ForwardArguments* args) {
  const MapBoxes boxes = map_boxes(kernel.variant, args->packing);
  if (Status s = hw::encode("q", problem.q, boxes.q, &args->q); !s.ok()) return s;
  if (kernel.stages_output) {
    if (Status s = hw::encode("o", problem.o, boxes.o, &args->o_boxes); !s.ok()) return s;
  }
  if (problem.k_len() == 0) {  // nothing will be loaded, but the maps have to be valid
    args->k = args->v = args->q;
    return {};
  }
  if (Status s = hw::encode("k", problem.k, boxes.keys, &args->k); !s.ok()) return s;
  return hw::encode("v", problem.v, boxes.keys, &args->v);
}

const Kernel* find_kernel(const ForwardVariant& variant) {
  const Kernel* found = nullptr;
  for_each_built([&]<int head_dim, Purpose purpose>() {
    if (head_dim != variant.head_dim) return;
    for (const Kernel& kernel : kernels<head_dim, purpose>()) {
      if (kernel.variant == variant) found = &kernel;
    }
  });
  return found;
}

}  // namespace

Status supported(const core::ForwardProblem& problem) {
  const ForwardVariant* chosen = choose_variant(problem);
  if (chosen == nullptr) return no_variant(problem);
  for (auto [name, tensor] :
       {std::pair{"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"o", &problem.o}}) {
    if (Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  if (tile_count(problem, *chosen) >= max_tiles) {
    return {TANDEM_UNSUPPORTED, "batch * heads * ceil(sq / " + std::to_string(chosen->block_m) +
                                    ") exceeds 2^30 tiles; split the batch"};
  }
  return {};
}

Status launch(const core::ForwardProblem& problem, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (auto [name, tensor] : {std::pair{"q.data", &problem.q},
                              {"k.data", &problem.k},
                              {"v.data", &problem.v},
                              {"o.data", &problem.o},
                              {"lse.data", &problem.lse}}) {
    if (Status s = hw::check_memory(name, tensor->data); !s.ok()) return s;
  }
  const ForwardVariant& variant = *choose_variant(problem);
  const int grid = grid_size(problem, variant, device.sm_count);
  ForwardArguments args = make_arguments(problem, variant, grid);
  const Kernel* kernel = find_kernel(variant);
  if (Status s = encode_maps(problem, *kernel, &args); !s.ok()) return s;
  if (Status s = hw::allow_shared_bytes(kernel->handle, device.ordinal, kernel->shared_bytes); !s.ok())
    return s;
  void* parameters[] = {&args};
  return hw::enqueue("the forward kernel",
                     {kernel->handle, grid, variant.threads(), kernel->shared_bytes, true}, parameters,
                     stream);
}

}  // namespace tandem::forward
