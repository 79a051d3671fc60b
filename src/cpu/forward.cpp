// The fast backend: cuts the problem into tiles and runs them on all cores.
#include "cpu/forward.h"

#include "cpu/parallel.h"
#include "cpu/tile.h"
#include "cpu/tiling.h"

namespace tandem::cpu {
namespace {

std::size_t scratch_floats(const core::ForwardProblem& p, const Tiling& tiling) {
  return Scratch::size(static_cast<std::size_t>(p.head_dim()), static_cast<std::size_t>(tiling.tile_rows));
}

}  // namespace

std::size_t forward_workspace(const core::ForwardProblem& p) {
  if (p.varlen.given) {  // how tall each sequence's tiles are is not known here
    constexpr auto tallest = static_cast<std::size_t>(Tiling::most_forward_rows);
    return static_cast<std::size_t>(thread_count()) *
           Scratch::size(static_cast<std::size_t>(p.head_dim()), tallest) * sizeof(float);
  }
  return static_cast<std::size_t>(thread_count()) * scratch_floats(p, Tiling(p)) * sizeof(float);
}

void forward(const core::ForwardProblem& p, void* workspace) {
  const Tiling tiling(p);
  const std::int64_t tasks = p.batch() * p.kv_heads() * tiling.tiles;
  const std::size_t floats = scratch_floats(p, tiling);
  for_each_task(tasks, [&](std::int64_t task, int thread) {
    // Late rows first: under a causal mask they are the longest.
    const std::int64_t head = task % (p.batch() * p.kv_heads());
    const std::int64_t begin = (tiling.tiles - 1 - task / (p.batch() * p.kv_heads())) * tiling.tile_rows;
    const std::int64_t end = begin + tiling.tile_rows < tiling.rows ? begin + tiling.tile_rows : tiling.rows;
    const Scratch scratch(static_cast<float*>(workspace) + static_cast<std::size_t>(thread) * floats,
                          static_cast<std::size_t>(p.head_dim()), static_cast<std::size_t>(tiling.tile_rows));
    const std::int64_t batch = head / p.kv_heads();
    run_tile(p, {batch, head % p.kv_heads(), begin, end, {nullptr, 0, batch}}, scratch);
  });
}

}  // namespace tandem::cpu
