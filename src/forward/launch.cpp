#include "forward/launch.h"

#include <bit>
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
  const MapBoxes boxes = map_boxes(problem, kernel.variant);
  if (Status s = hw::encode("q", problem.q, boxes.q, &args->q); !s.ok()) return s;
  if (kernel.stages_output) {
    if (Status s = hw::encode("o", problem.o, boxes.o, &args->o_boxes); !s.ok()) return s;
  }
  if (problem.k_len() == 0 || problem.k.shape[0] * problem.k.shape[1] ==
                                  0) {  // nothing will be loaded, but the maps have to be valid
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

Status check_varlen_memory(const core::Varlen& varlen) {
  for (auto [name, address] : {std::pair{"varlen.cu_seqlens_q", varlen.cu_seqlens_q},
                               {"varlen.cu_seqlens_k", varlen.cu_seqlens_k},
                               {"varlen.seqused_k", varlen.seqused_k},
                               {"varlen.page_table", varlen.page_table}}) {
    if (Status s = hw::check_memory(name, address); !s.ok()) return s;
  }
  return {};
}

/// What boxes of TMA can take of a page.
Status check_pages(const core::ForwardProblem& problem) {
  constexpr std::int64_t fewest = 16;
  const std::int64_t page_size = problem.k.shape[1];
  if (problem.varlen.page_table == nullptr ||
      (page_size >= fewest && std::has_single_bit(static_cast<std::uint64_t>(page_size))))
    return {};
  return {TANDEM_UNSUPPORTED, "k.shape[1] (page size) is " + std::to_string(page_size) +
                                  "; the Hopper backend takes powers of two from 16 on"};
}

/// The kernel that makes the list of tiles.
Status enqueue_listing(const core::ForwardProblem& problem, const ForwardVariant& variant,
                       ForwardArguments& args, void* stream) {
  if (Status s = hw::check_memory("workspace", args.varlen.tile_list); !s.ok()) return s;
  int tile_queries = variant.block_m >> args.packing.log2_heads;
  void* parameters[] = {&args, &tile_queries};
  return hw::enqueue("the kernel that lists tiles",
                     {list_kernel_handle(), listing_blocks(problem, variant), tile_list_threads, 0, true},
                     parameters, stream);
}

}  // namespace

Status supported(const core::ForwardProblem& problem) {
  const ForwardVariant* chosen = choose_variant(problem);
  if (chosen == nullptr) return no_variant(problem);
  for (auto [name, tensor] :
       {std::pair{"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"o", &problem.o}}) {
    if (Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  if (Status s = check_pages(problem); !s.ok()) return s;
  if (tile_count(problem, *chosen) >= max_tiles) {
    return {TANDEM_UNSUPPORTED, "batch * heads * ceil(sq / " + std::to_string(chosen->block_m) +
                                    ") exceeds 2^30 tiles; split the batch"};
  }
  return {};
}

Status launch(const core::ForwardProblem& problem, void* workspace, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (auto [name, tensor] : {std::pair{"q.data", &problem.q},
                              {"k.data", &problem.k},
                              {"v.data", &problem.v},
                              {"o.data", &problem.o},
                              {"lse.data", &problem.lse}}) {
    if (Status s = hw::check_memory(name, tensor->data); !s.ok()) return s;
  }
  if (Status s = check_varlen_memory(problem.varlen); !s.ok()) return s;
  const ForwardVariant& variant = *choose_variant(problem);
  const int grid = grid_size(problem, variant, device.sm_count);
  ForwardArguments args = make_arguments(problem, variant, grid);
  const Kernel* kernel = find_kernel(variant);
  if (Status s = encode_maps(problem, *kernel, &args); !s.ok()) return s;
  if (Status s = hw::allow_shared_bytes(kernel->handle, device.ordinal, kernel->shared_bytes); !s.ok())
    return s;
  if (problem.varlen.given) {
    args.varlen.tile_list = static_cast<std::int32_t*>(workspace);
    if (Status s = enqueue_listing(problem, variant, args, stream); !s.ok()) return s;
  }
  void* parameters[] = {&args};
  return hw::enqueue("the forward kernel",
                     {kernel->handle, grid, variant.threads(), kernel->shared_bytes, true}, parameters,
                     stream);
}

}  // namespace tandem::forward
