// P and dS of a block in registers, and the products that take them.
//
// S and dP are computed transposed: a warpgroup's 64 rows are keys, its columns queries. P and dS then are A
// operands of the products for dV and dK as they stand in registers.
#pragma once

#include "backward/arguments.h"
#include "backward/statistics.h"
#include "backward/work.h"
#include "hw/hw.h"
#include "tile/gemm.h"
#include "tile/output_row.h"
#include "tile/pipeline.h"
#include "tile/shared_tile.h"
#include "tile/softmax.h"

namespace tandem::backward {

/// Queries that see the thread's two keys.
struct KeyLimits {
  int begin[2], end[2];

  /// `key`: the thread's upper one; the lower one is 8 further down. Nobody sees keys behind the last one.
  TANDEM_DEVICE static KeyLimits of(const Extent& extent, int key) {
    KeyLimits limits;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int own = key + 8 * i;
      const auto queries = extent.mask.transposed().visible_keys(own, extent.k_len, extent.q_len);
      limits.begin[i] = queries.begin;
      limits.end[i] = own < extent.k_len ? queries.end : queries.begin;
    }
    return limits;
  }

  /// Whether key `row` (0 or 1) sees a query; `query` without the thread's own offset 2 * (lane % 4).
  TANDEM_DEVICE bool sees(int row, int query) const {
    const int own = query + 2 * static_cast<int>(hw::lane_index() % 4);
    return own >= begin[row] && own < end[row];
  }
};

/// Four of a thread's accumulators on their way through memory, in one access.
struct alignas(16) AccumulatorQuad {
  float value[4];

  template <int count>
  TANDEM_DEVICE static AccumulatorQuad of(const float (&accumulators)[count], int quad) {
    const int j = 4 * quad;
    return {{accumulators[j], accumulators[j + 1], accumulators[j + 2], accumulators[j + 3]}};
  }
};

/// Their words.
struct AccumulatorWords {
  std::uint32_t word[4];
};

/// The statistics of the thread's four of sixteen queries, from the group's place on.
struct FourQueries {
  float value[4];

  TANDEM_DEVICE static FourQueries load(const float* group) {
    const auto* quad = reinterpret_cast<const AccumulatorQuad*>(group + 4 * (hw::lane_index() % 4));
    return {{quad->value[0], quad->value[1], quad->value[2], quad->value[3]}};
  }
  /// Of accumulator j.
  TANDEM_DEVICE float of(int j) const { return value[j / 4 % 2 * 2 + j % 2]; }
};

/// Those of a block of queries: the first `ahead` groups are loaded at once, the others when they are used.
template <int ahead>
struct BlockStatistics {
  const float* from;
  FourQueries first[ahead > 0 ? ahead : 1];

  TANDEM_DEVICE static BlockStatistics load(const float* from) {
    BlockStatistics statistics{from, {}};
    TANDEM_UNROLL
    for (int g = 0; g < ahead; ++g) statistics.first[g] = FourQueries::load(from + g * statistics_group);
    return statistics;
  }
  TANDEM_DEVICE FourQueries group(int g) const {
    return g < ahead ? first[g] : FourQueries::load(from + g * statistics_group);
  }
};

/// Whether P is rounded as soon as it is there, so that its product can start before dS is known. Where
/// registers are too few for that, it is rounded with dS; a cap needs its own factor of dS in P's place.
template <BackwardVariant V>
inline constexpr bool rounds_early = V.block_m == 64 || V.softcap;

/// Line 24: scores become probabilities, exp(scale * S - L), and 0 where the mask hides the pair. With a cap,
/// scale * S is cap * t, t = tanh(...), and the scores become P (1 - t^2), what dS is the product of dP - D
/// with.
template <BackwardVariant V, BlockKind kind, int queries, int ahead>
TANDEM_DEVICE void exponentiate(const BackwardArguments& args, const KeyLimits& limits, int first_query,
                                const BlockStatistics<ahead>& lse_log2, float (&scores)[queries / 2],
                                tile::Probabilities<queries>& p) {
  TANDEM_UNROLL
  for (int g = 0; g < queries / statistics_group; ++g) {
    const FourQueries lse = lse_log2.group(g);
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      float factor[2];
      TANDEM_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int j = 8 * g + 2 * r + c;
        const float t = V.softcap ? hw::tanh(scores[j] * args.score_to_cap) : scores[j];
        scores[j] = hw::exp2(hw::fma(t, args.scale_log2, -lse.of(j)));
        if constexpr (kind == BlockKind::masked) {
          if (!limits.sees(tile::row_of_accumulator(j), first_query + tile::column_of_accumulator(j)))
            scores[j] = 0.f;
        }
        factor[c] = hw::fma(-t, t, 1.f);
      }
      const int j = 8 * g + 2 * r;
      if constexpr (rounds_early<V>) p.fragment[g][r] = hw::pack<V.operand>(scores[j], scores[j + 1]);
      if constexpr (V.softcap) {
        scores[j] *= factor[0];
        scores[j + 1] *= factor[1];
      }
    }
  }
}

/// Line 25: dS = P o (dP - D), rounded; P too, if it is not yet.
template <BackwardVariant V, int queries>
TANDEM_DEVICE void differentiate(const float* delta, const float (&probabilities)[queries / 2],
                                 const float (&dp)[queries / 2], tile::Probabilities<queries>& p,
                                 tile::Probabilities<queries>& ds) {
  TANDEM_UNROLL
  for (int g = 0; g < queries / statistics_group; ++g) {
    const FourQueries d = FourQueries::load(delta + g * statistics_group);
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int j = 8 * g + 2 * r;
      if constexpr (!rounds_early<V>)
        p.fragment[g][r] = hw::pack<V.operand>(probabilities[j], probabilities[j + 1]);
      ds.fragment[g][r] = hw::pack<V.operand>(probabilities[j] * (dp[j] - d.of(j)),
                                              probabilities[j + 1] * (dp[j + 1] - d.of(j + 1)));
    }
  }
}

/// Stores the warp's 16 rows of rounded dS into a tile, from row `first` on.
template <int queries, typename Tile>
TANDEM_DEVICE void store_fragments(Tile& to, int first, const tile::Probabilities<queries>& ds) {
  // An A fragment is four 8 x 8 matrices, as in tile::store_rounded.
  const int lane = static_cast<int>(hw::lane_index());
  const int row = first + lane % 8 + lane / 8 % 2 * 8, column = lane / 16 * tile::chunk_columns;
  TANDEM_UNROLL
  for (int g = 0; g < queries / tile::k_step; ++g)
    hw::store_matrices(&to.chunk(row, tile::k_step * g + column), ds.fragment[g]);
}

/// Starts A B^T: S, dP, or the transpose of one.
template <hw::Operand operand, int count, typename A, typename B>
TANDEM_DEVICE void start_score_product(float (&scores)[count], const A& a, const B& b) {
  hw::wgmma_fence();
  tile::issue_scores<operand>(scores, a, b);
  hw::wgmma_commit();
}

/// Starts gradient += fragments B.
template <hw::Operand operand, int count, int block, typename B>
TANDEM_DEVICE void start_gradient_product(float (&gradient)[count],
                                          const tile::Probabilities<block>& fragments, const B& b) {
  hw::wgmma_fence();
  tile::start_output<operand>(gradient, fragments, b);
  hw::wgmma_commit();
}

/// The warp is done with a stage, of which its lanes have read statistics.
template <int stages>
TANDEM_DEVICE void release_read_stage(tile::Pipeline<stages>& pipeline,
                                      const tile::PipelineState<stages>& at) {
  hw::sync_warp();
  tile::consumer_release(pipeline, at);
}

/// A thread's two rows of a gradient: where the upper one is among those of its head and sequence, which
/// begin with row `first` of the tensor, and how many there are.
struct GradientRows {
  int batch, head, first, row, length;
};

/// Scales and stores them.
template <hw::Operand operand, int count>
TANDEM_DEVICE void store_gradient(const core::TensorView& to, const GradientRows& at, int head_dim,
                                  float scale, float (&gradient)[count]) {
  TANDEM_UNROLL
  for (int i = 0; i < count; ++i) gradient[i] *= scale;
  // All exchanges before any store, as stores keep their order.
  using Row = tile::OutputRow<operand, 2 * count>;
  const Row upper(gradient, 0), lower(gradient, 1);
  const int row = at.first + at.row;
  if (at.row < at.length) upper.store(to.row<std::uint16_t>(at.batch, row, at.head), head_dim);
  if (at.row + 8 < at.length) lower.store(to.row<std::uint16_t>(at.batch, row + 8, at.head), head_dim);
}

}  // namespace tandem::backward
