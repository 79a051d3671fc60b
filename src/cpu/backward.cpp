// The fast backend's backward pass: statistics of all rows, then tiles of dK, dV and of dQ on all cores.
#include "cpu/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cpu/backward_tile.h"
#include "cpu/parallel.h"
#include "cpu/varlen.h"

namespace tandem::cpu {
namespace {

using core::BackwardProblem;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The tiles of both sides, and where each thing lies in the workspace.
struct Plan {
  std::int64_t heads;
  Tiling keys, queries;
  std::size_t head_dim, statistics, scratch;  ///< the latter in floats: per array, per thread

  explicit Plan(const BackwardProblem& p)
      : heads(p.batch() * p.kv_heads()),
        keys(heads, p.k_len(), tallest_backward_tile),
        queries(heads, p.q_len() * p.group(), tallest_backward_tile),
        head_dim(static_cast<std::size_t>(p.head_dim())),
        statistics(whole_blocks(static_cast<std::size_t>(heads * RowStatistics::rows_of_head(p)))),
        scratch(whole_blocks(BackwardScratch::size(
            head_dim, static_cast<std::size_t>(std::max(keys.tile_rows, queries.tile_rows))))) {}

  std::size_t bytes() const {
    return (2 * statistics + static_cast<std::size_t>(thread_count()) * scratch) * sizeof(float);
  }
  std::int64_t tiles_of_keys() const { return heads * keys.tiles; }
  std::int64_t tiles_of_queries() const { return heads * queries.tiles; }

  BackwardTile tile_of_keys(const BackwardProblem& p, std::int64_t task) const {
    return tile(p, Side::keys, keys, task % heads, task / heads);
  }
  /// Last rows first: under a causal mask they are the longest, as the first keys are.
  BackwardTile tile_of_queries(const BackwardProblem& p, std::int64_t task) const {
    return tile(p, Side::queries, queries, task % heads, queries.tiles - 1 - task / heads);
  }

 private:
  static BackwardTile tile(const BackwardProblem& p, Side side, const Tiling& tiling, std::int64_t head,
                           std::int64_t at) {
    const std::int64_t begin = at * tiling.tile_rows;
    return {side, head / p.kv_heads(), head % p.kv_heads(), begin,
            std::min(begin + tiling.tile_rows, tiling.rows)};
  }
};

template <typename Element>
double dot(const Element* a, const Element* b, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += static_cast<double>(float(a[i])) * float(b[i]);
  return sum;
}

/// rowsum(dout o) - dlse of a row.
template <typename Element>
double delta_of(const BackwardProblem& p, std::int64_t b, std::int64_t i, std::int64_t h) {
  const double dlse = p.dlse.data == nullptr ? 0.0 : *core::row_of<float>(p.dlse, b, i, h);
  return dot(core::row_of<Element>(p.dout, b, i, h), core::row_of<Element>(p.o, b, i, h), p.head_dim()) -
         dlse;
}

/// Line 1 of Algorithm 3 for the rows of one tile of queries. Those without a part are not read.
template <typename Element>
void find_statistics_of(const BackwardProblem& p, const BackwardTile& tile, const RowStatistics& statistics) {
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const std::int64_t b = tile.batch, i = row / p.group(), h = tile.kv_head * p.group() + row % p.group();
    const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
    const float lse = *core::row_of<float>(p.lse, b, i, h);
    const bool counts = keys.begin < keys.end && lse != -infinity;
    statistics.lse[row] = counts ? lse : infinity;
    statistics.delta[row] = 0;
    if (!counts) continue;
    statistics.delta[row] = static_cast<float>(delta_of<Element>(p, b, i, h));
  }
}

/// The part of a sequence, or of all of fixed lengths, in the gradient of a head's sink: over all rows, also
/// those that see no key.
template <typename Element>
double sink_gradient(const BackwardProblem& p, std::int64_t h) {
  double sum = 0;
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.q_len(); ++i) {
      const float lse = *core::row_of<float>(p.lse, b, i, h);
      if (lse != -infinity)
        sum -= std::exp(static_cast<double>(p.sinks[h]) - lse) * delta_of<Element>(p, b, i, h);
    }
  return sum;
}

/// call.operator()<Element>() for the problem's dtype.
template <typename Call>
void with_element(const BackwardProblem& p, Call call) {
  switch (p.dtype()) {
    case TANDEM_BF16:
      return call.template operator()<core::Bf16>();
    case TANDEM_FP16:
      return call.template operator()<core::Fp16>();
    case TANDEM_FP32:
      return call.template operator()<float>();
    case TANDEM_E4M3:
    case TANDEM_INT8:  // no backward pass has them
      return;
  }
}

void find_sink_gradients(const BackwardProblem& p) {
  for_each_task(p.dsinks == nullptr ? 0 : p.q_heads(), [&](std::int64_t head, int) {
    double sum = 0;
    for (std::int64_t i = 0; i < sequences_of(p); ++i) {
      const BackwardProblem own = sequence_of(p, i);
      with_element(own, [&]<typename Element>() { sum += sink_gradient<Element>(own, head); });
    }
    p.dsinks[head] = static_cast<float>(sum);
  });
}

/// The gradients of a sequence, or of all of fixed lengths, but for those of sinks.
void backward_of_sequence(const BackwardProblem& p, float* memory) {
  const Plan plan(p);
  const RowStatistics statistics{memory, memory + plan.statistics};
  std::fill_n(statistics.lse, plan.statistics, infinity);
  for_each_task(plan.tiles_of_queries(), [&](std::int64_t task, int) {
    const BackwardTile tile = plan.tile_of_queries(p, task);
    const RowStatistics own = statistics.of_head(p, tile.batch, tile.kv_head);
    with_element(p, [&]<typename Element>() { find_statistics_of<Element>(p, tile, own); });
  });
  const auto tile_rows = static_cast<std::size_t>(std::max(plan.keys.tile_rows, plan.queries.tile_rows));
  for_each_task(plan.tiles_of_keys() + plan.tiles_of_queries(), [&](std::int64_t task, int thread) {
    const bool of_keys = task < plan.tiles_of_keys();
    const BackwardTile tile =
        of_keys ? plan.tile_of_keys(p, task) : plan.tile_of_queries(p, task - plan.tiles_of_keys());
    const BackwardScratch scratch(
        memory + 2 * plan.statistics + static_cast<std::size_t>(thread) * plan.scratch, plan.head_dim,
        tile_rows);
    run_backward_tile(p, tile, statistics.of_head(p, tile.batch, tile.kv_head), scratch);
  });
}

/// The longest sequence that the bounds allow; its tensors' data is not known.
BackwardProblem longest_sequence(const BackwardProblem& p) {
  BackwardProblem longest = p;
  longest.varlen = {};
  longest.q.shape[0] = 1, longest.q.shape[1] = p.q_len(), longest.k.shape[1] = p.k_len();
  return longest;
}

}  // namespace

std::size_t backward_workspace(const BackwardProblem& p) {
  // No sequence needs more than the longest: tiles of more rows are as tall or taller.
  return Plan(p.varlen.given ? longest_sequence(p) : p).bytes();
}

void backward(const BackwardProblem& p, void* workspace) {
  find_sink_gradients(p);
  for (std::int64_t i = 0; i < sequences_of(p); ++i)
    backward_of_sequence(sequence_of(p, i), static_cast<float*>(workspace));
}

}  // namespace tandem::cpu
