// The fast backend: cuts the problem into tiles and runs them on all cores.
#include "cpu/forward.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/tile.h"
#include "cpu/tiling.h"

namespace tandem::cpu {
namespace {

/// Of block lists: tiles of one query head, whose rows have one list.
struct ListedTiling {
  std::int64_t tile_rows, tiles_of_block, blocks;
  std::size_t floats;  ///< scratch of a task, which has whole panels

  explicit ListedTiling(const core::ForwardProblem& p) {
    const std::int64_t q_block = std::min(p.blocks.q_block, std::max<std::int64_t>(1, p.q_len()));
    const Tiling of_heads(p.batch() * p.q_heads(), p.q_len(), Tiling::most_forward_rows);
    tile_rows = std::min(of_heads.tile_rows, q_block);
    tiles_of_block = core::ceil_div(q_block, tile_rows);
    blocks = core::ceil_div(p.q_len(), q_block);
    floats = Scratch::size(widest_row(p), padded_rows());
  }
  std::size_t padded_rows() const {
    return static_cast<std::size_t>(core::round_up(tile_rows, max_panel_rows));
  }
};

/// One query head of an entry, and its key/value head, as a problem of their own.
core::ForwardProblem problem_of_head(const core::ForwardProblem& p, std::int64_t head) {
  core::ForwardProblem own = p;
  const auto take = [](core::Tensor& t, std::int64_t h) {
    t.data =
        static_cast<std::byte*>(t.data) + h * t.stride[2] * static_cast<std::int64_t>(core::size_of(t.dtype));
    t.shape[2] = 1;
  };
  take(own.q, head), take(own.o, head), take(own.k, head / p.group()), take(own.v, head / p.group());
  if (p.lse.data != nullptr) take(own.lse, head);
  if (p.sinks != nullptr) own.sinks += head;
  if (p.slopes.given()) own.slopes.data += head;
  return own;
}

void forward_listed(const core::ForwardProblem& p, void* workspace) {
  const ListedTiling tiling(p);
  const std::int64_t heads = p.batch() * p.q_heads();
  for_each_task(heads * tiling.blocks * tiling.tiles_of_block, [&](std::int64_t task, int thread) {
    const std::int64_t batch = task % heads / p.q_heads(), head = task % p.q_heads();
    const std::int64_t place = task / heads, block = place / tiling.tiles_of_block;
    const std::int64_t begin = block * p.blocks.q_block + place % tiling.tiles_of_block * tiling.tile_rows;
    const std::int64_t end = std::min({begin + tiling.tile_rows, (block + 1) * p.blocks.q_block, p.q_len()});
    if (begin >= end) return;
    const Scratch scratch(static_cast<float*>(workspace) + static_cast<std::size_t>(thread) * tiling.floats,
                          widest_row(p), tiling.padded_rows());
    run_tile(problem_of_head(p, head),
             {batch,
              0,
              begin,
              end,
              {nullptr, 0, batch},
              {p.blocks.of_query(batch, head, begin), p.blocks.k_block}},
             scratch);
  });
}

}  // namespace

std::size_t forward_workspace(const core::ForwardProblem& p) {
  if (p.varlen.given) {  // how tall each sequence's tiles are is not known here
    constexpr auto tallest = static_cast<std::size_t>(Tiling::most_forward_rows);
    return static_cast<std::size_t>(thread_count()) * Scratch::size(widest_row(p), tallest) * sizeof(float);
  }
  const std::size_t floats = p.blocks.given() ? ListedTiling(p).floats : scratch_floats(p, Tiling(p));
  return static_cast<std::size_t>(thread_count()) * floats * sizeof(float);
}

void forward(const core::ForwardProblem& p, void* workspace) {
  if (p.blocks.given()) return forward_listed(p, workspace);
  const Tiling tiling(p);
  const std::int64_t tasks = p.batch() * p.kv_heads() * tiling.tiles;
  const std::size_t floats = scratch_floats(p, tiling);
  for_each_task(tasks, [&](std::int64_t task, int thread) {
    // Late rows first: under a causal mask they are the longest.
    const std::int64_t head = task % (p.batch() * p.kv_heads());
    const std::int64_t begin = (tiling.tiles - 1 - task / (p.batch() * p.kv_heads())) * tiling.tile_rows;
    const std::int64_t end = begin + tiling.tile_rows < tiling.rows ? begin + tiling.tile_rows : tiling.rows;
    const Scratch scratch(static_cast<float*>(workspace) + static_cast<std::size_t>(thread) * floats,
                          widest_row(p), static_cast<std::size_t>(tiling.tile_rows));
    const std::int64_t batch = head / p.kv_heads();
    run_tile(p, {batch, head % p.kv_heads(), begin, end, {nullptr, 0, batch}}, scratch);
  });
}

}  // namespace tandem::cpu
