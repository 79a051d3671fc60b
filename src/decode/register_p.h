// Algorithm "register_p": P stays in registers, each warp keeps to its own keys, with maxima and an output of
// its own, and one combine at the end joins the four.
//
// Source: Chris Elrod, "U/WGMMA Flash Decoding", 8 May 2025, "Option 1: Perform split-k reduction". Where it
// leaves O as it is and pads its rows, here O is transposed too: O^T += V^T P by mma.sync, whose N of 8 fits
// the grouped queries, with V^T through ldmatrix and P as the B operand.
#pragma once

#include "decode/transposed.h"

namespace tandem::decode {

/// The output of a warp's own keys: [t][4 * j ...] is the fragment of output columns 16 * t and on, query
/// rows 8 * j and on.
template <DecodeVariant V>
struct WarpOutput {
  static constexpr int tiles = V.head_dim / 16;
  float fragment[tiles][V.query_rows / 8][4] = {};
};

/// P of 16 keys as B fragments. A fragment of S^T has a key for each row, B's registers a query row for each
/// lane's: every 8 x 8 matrix turns around.
template <DecodeVariant V>
TANDEM_DEVICE void make_fragments(std::uint32_t (&b)[V.query_rows / 8][2],
                                  const float (&p)[V.query_rows / 2]) {
  TANDEM_UNROLL
  for (int j = 0; j < V.query_rows / 8; ++j) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      b[j][i] = hw::transpose_matrix(hw::pack<V.operand>(p[4 * j + 2 * i], p[4 * j + 2 * i + 1]));
    }
  }
}

/// O^T += V^T P over the warp's keys of the block of values that is full.
template <DecodeVariant V>
TANDEM_DEVICE void add_output(Consumer<V>& consumer, const TransposedScores<V>& p, WarpOutput<V>& output) {
  auto& values = consumer.values();
  const int lane = static_cast<int>(hw::lane_index());
  // Matrices of V^T: keys 0-7 and 8-15 of the warp's 16, each with output columns 0-7 and 8-15 of 16.
  const int key = 16 * own_warp() + lane / 16 * 8 + lane % 8;
  TANDEM_UNROLL
  for (int tile = 0; tile < V.subtiles(); ++tile) {
    std::uint32_t b[V.query_rows / 8][2];
    make_fragments<V>(b, p[tile]);
    TANDEM_UNROLL
    for (int t = 0; t < output.tiles; ++t) {
      std::uint32_t a[4];
      hw::load_matrices_transposed(a, &values.tile[tile].chunk(key, 16 * t + lane / 8 % 2 * 8));
      TANDEM_UNROLL
      for (int j = 0; j < V.query_rows / 8; ++j) hw::mma_sync<V.operand>(output.fragment[t][j], a, b[j]);
    }
  }
}

template <DecodeVariant V>
TANDEM_DEVICE void scale_columns(WarpOutput<V>& output, const float (&factor)[own_columns<V.query_rows>]) {
  TANDEM_UNROLL
  for (auto& tile : output.fragment) {
    TANDEM_UNROLL
    for (int j = 0; j < V.query_rows / 8; ++j) {
      TANDEM_UNROLL
      for (int e = 0; e < 4; ++e) tile[j][e] *= factor[2 * j + e % 2];
    }
  }
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_register_p(Consumer<V>& consumer, const WorkTile& work,
                                     ColumnSoftmax<V.query_rows>& softmax, WarpOutput<V>& output) {
  constexpr int own = own_columns<V.query_rows>;
  for (int key = work.begin; key < work.end; key += V.block_n) {  // for k in range(R)
    float scores[V.subtiles()][V.query_rows / 2], maxima[own], correction[own];

    consumer.wait_keys(work, key);
    start_scores(consumer, scores);  // S = K @ Q': 16 rows of every 64 are the warp's
    hw::wgmma_wait<0>();
    consumer.release_keys();

    cap_and_mask(consumer, work, key, scores);
    reduce_maxima<V>(scores, maxima);
    softmax.raise(maxima, correction, consumer.args.scale_log2, 0.f);
    softmax.template exponentiate<V.operand>(scores, consumer.args.scale_log2);
    scale_columns(output, correction);

    consumer.wait_values();
    hw::sync_warp();
    add_output(consumer, scores, output);  // O += (P[range(16) + 16*w + 16*W*k, :])' @ V[...], transposed
    hw::sync_warp();
    consumer.release_values();
  }
}

/// "After the main loop, we must combine the accumulators of all warps": first the statistics, then each warp
/// adds up a quarter of O^T, the rows that it would have of WGMMA's accumulators.
template <DecodeVariant V>
TANDEM_DEVICE void combine_warps(Consumer<V>& consumer, ColumnSoftmax<V.query_rows>& softmax,
                                 WarpOutput<V>& output, TransposedResult<V>& result) {
  constexpr int own = own_columns<V.query_rows>;
  auto& shared = consumer.shared.own;
  const int warp = own_warp(), lane = static_cast<int>(hw::lane_index());
  TANDEM_UNROLL
  for (float& x : softmax.exact_sum) x = column_sum(x);
  give_columns(shared.exchange.maxima, softmax.reference);
  give_columns(shared.exchange.sums, softmax.exact_sum);
  sync_consumers<V>();
  take_columns(result.softmax.reference, shared.exchange.maxima,
               [](float a, float b) { return hw::max(a, b); });
  float factor[own];
  TANDEM_UNROLL
  for (int k = 0; k < own; ++k) {
    const float reference = result.softmax.reference[k];
    float sum = 0.f;
    TANDEM_UNROLL
    for (int w = 0; w < warps; ++w) {
      const float weight = hw::exp2(shared.exchange.maxima[w][column_of(k)] - reference);
      sum += weight * shared.exchange.sums[w][column_of(k)];
    }
    factor[k] = hw::exp2(softmax.reference[k] - reference);
    result.softmax.sum[k] = sum;
  }
  scale_columns(output, factor);

  TANDEM_UNROLL
  for (int round = 0; round < warps; ++round) {  // in round r, warp w gives what belongs to warp w + r
    const int target = (warp + round) % warps;
    TANDEM_UNROLL
    for (int q = 0; q < warps; ++q) {  // registers have no index: all quarters are looked at
      if (q != target) continue;
      TANDEM_UNROLL
      for (int e = 0; e < V.head_dim * V.query_rows / 128; ++e) {
        const int m = e / (V.query_rows / 2), j = e % (V.query_rows / 2);
        const float value = output.fragment[4 * m + q][j / 4][j % 4];
        if (round == 0) {
          result.output[m][j] = value;
        } else {
          shared.quarter[q][e][lane] = value;
        }
      }
    }
    if (round == 0) continue;
    sync_consumers<V>();
    TANDEM_UNROLL
    for (int e = 0; e < V.head_dim * V.query_rows / 128; ++e) {
      result.output[e / (V.query_rows / 2)][e % (V.query_rows / 2)] += shared.quarter[warp][e][lane];
    }
    sync_consumers<V>();
  }
}

}  // namespace tandem::decode
