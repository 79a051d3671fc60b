// How the backward pass is cut into tasks, and the scratch memory of one task.
//
// There are two kinds of task, which mirror one another: a tile of queries past which the keys stream, for
// dQ, and a tile of keys past which the queries stream, for dK and dV. Each computes the scores anew, 7
// products in all where 5 would do. In return a task owns what it writes: no sums across tasks, so no
// atomics, no order to keep and no accumulators of the size of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/backward_problem.h"
#include "cpu/tiling.h"

namespace tandem::cpu {

/// Whose rows a tile consists of; those of the other side stream past it. Query heads are folded: row r of
/// queries is query r / group of head kv_head * group + r % group.
enum class Side { queries, keys };

/// Rows of the streaming side that are worked on at once.
constexpr std::int64_t stream_rows = 64;
constexpr std::int64_t tallest_backward_tile = 128;

/// One task: some rows of one key/value head.
struct BackwardTile {
  Side side;
  std::int64_t batch, kv_head, row_begin, row_end;
};

/// What is known of each query before the tiles run (Algorithm 3, line 1): for each key/value head its rows,
/// padded to whole panels.
struct RowStatistics {
  float* lse;    ///< +inf for a row that has no part in any gradient
  float* delta;  ///< rowsum(dout o) - dlse

  static std::int64_t rows_of_head(const core::BackwardProblem& p) {
    return core::round_up(p.q_len() * p.group(), max_panel_rows);
  }
  RowStatistics of_head(const core::BackwardProblem& p, std::int64_t batch, std::int64_t kv_head) const {
    const std::int64_t at = (batch * p.kv_heads() + kv_head) * rows_of_head(p);
    return {lse + at, delta + at};
  }
};

/// The scratch of one task, cut out of the workspace. `first` is Q or K, `second` dO or V, of either side.
struct BackwardScratch {
  float *stream_first, *stream_second;  ///< stream_rows rows of key_stride
  float *tile_first, *tile_second;      ///< per panel of rows: head_dim x panel, transposed
  float *out_first, *out_second;        ///< the same shape: dQ, or dK and dV, not yet scaled
  float *probabilities, *gradients;     ///< stream_rows x panel

  static std::size_t size(std::size_t head_dim, std::size_t tile_rows) {
    return 2 * stream_rows * Scratch::key_stride(head_dim) + 4 * tile_rows * head_dim +
           2 * stream_rows * max_panel_rows;
  }

  BackwardScratch(float* memory, std::size_t head_dim, std::size_t tile_rows) {
    const auto take = [&memory](std::size_t floats) { return std::exchange(memory, memory + floats); };
    for (float** stream : {&stream_first, &stream_second})
      *stream = take(stream_rows * Scratch::key_stride(head_dim));
    for (float** panels : {&tile_first, &tile_second, &out_first, &out_second})
      *panels = take(tile_rows * head_dim);
    for (float** weights : {&probabilities, &gradients}) *weights = take(stream_rows * max_panel_rows);
  }
};

}  // namespace tandem::cpu
