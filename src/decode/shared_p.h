// Algorithm "shared_p": both products take their 64 rows from the cache. The four warps agree on column
// maxima, and P goes through shared memory.
//
// Source: Chris Elrod, "U/WGMMA Flash Decoding", 8 May 2025, "Option 0: Copy P to shared memory, O is
// transposed".
#pragma once

#include "decode/transposed.h"

namespace tandem::decode {

/// The largest of all warps' maxima in this block.
template <DecodeVariant V>
TANDEM_DEVICE void exchange_maxima(Consumer<V>& consumer, float (&maxima)[own_columns<V.query_rows>]) {
  constexpr int own = own_columns<V.query_rows>;
  auto& shared = consumer.own().exchange.maxima;
  if (hw::lane_index() < 4) {
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) shared[own_warp<V>()][column_of(k)] = maxima[k];
  }
  sync_consumers<V>();
  TANDEM_UNROLL
  for (int k = 0; k < own; ++k) {
    TANDEM_UNROLL
    for (int warp = 0; warp < warps; ++warp) maxima[k] = hw::max(maxima[k], shared[warp][column_of(k)]);
  }
}

/// P^T to shared memory: query rows by keys.
template <DecodeVariant V>
TANDEM_DEVICE void store_probabilities(Consumer<V>& consumer, const TransposedScores<V>& scores) {
  TANDEM_UNROLL
  for (int tile = 0; tile < V.subtiles(); ++tile) {
    store_transposed<V>(consumer.own().p[tile], 0, scores[tile]);
  }
}

/// Starts O^T += V^T P for the block of values that is full.
template <DecodeVariant V>
TANDEM_DEVICE void start_output(Consumer<V>& consumer, TransposedResult<V>& result) {
  auto& values = consumer.values();
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int m = 0; m < V.value_dim / 64; ++m) {
    TANDEM_UNROLL
    for (int step = 0; step < V.block_n / tile::k_step; ++step) {
      constexpr int steps = 64 / tile::k_step;  // of a tile of 64 keys
      const auto& tile = values.tile[step / steps];
      hw::wgmma_ss<V.operand, V.query_rows, hw::Major::k, hw::Major::mn>(
          result.output[m], tile.mn_major(step % steps).advanced(m * tile.panel_bytes),
          consumer.own().p[step / steps].k_major(step % steps), hw::Accumulate::add);
    }
  }
  hw::wgmma_commit();
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_shared_p(Consumer<V>& consumer, const WorkTile& work, TransposedResult<V>& result) {
  if constexpr (V.turns > 1) {
    consumer.await_turn();
    if (work.begin >= work.end) consumer.pass_turn();
  }
  for (int key = work.begin; key < work.end; key += V.block_n) {
    float scores[V.subtiles()][V.query_rows / 2], maxima[result.own], correction[result.own];

    consumer.wait_keys(work, key);
    start_scores(consumer, scores);  // S = K[range(kv_start, kv_start+BN),:] @ Q'
    hw::wgmma_wait<0>();
    if constexpr (V.turns == 1) consumer.release_keys();

    mask_and_reduce(consumer, work, key, scores, maxima);
    exchange_maxima(consumer, maxima);                                            // col_max = colmax(S)
    result.softmax.update(scores, maxima, correction, consumer.args.scale_log2);  // P = exp(S - col_max)
    store_probabilities(consumer, scores);
    hw::fence_async_proxy();
    result.scale(correction);  // O = exp(old_col_max - col_max) * O
    sync_consumers<V>();

    consumer.wait_values();
    // Not before: keys that have come tell who waits for the values beside them that those a round before
    // have.
    if constexpr (V.turns > 1) consumer.release_keys();
    start_output(consumer, result);  // O += (V[range(kv_start, kv_start+BN), :])' @ P
    hw::wgmma_wait<0>();
    consumer.release_values();
  }
}

/// Sums of columns over the keys of all threads.
template <DecodeVariant V>
TANDEM_DEVICE void complete_shared_p(Consumer<V>& consumer, TransposedResult<V>& result) {
  auto& sums = consumer.own().exchange.sums;
  TANDEM_UNROLL
  for (float& sum : result.softmax.sum) sum = column_sum(sum);
  if (hw::lane_index() < 4) {
    TANDEM_UNROLL
    for (int k = 0; k < result.own; ++k) sums[own_warp<V>()][column_of(k)] = result.softmax.sum[k];
  }
  sync_consumers<V>();
  TANDEM_UNROLL
  for (int k = 0; k < result.own; ++k) {
    result.softmax.sum[k] = 0.f;
    TANDEM_UNROLL
    for (int warp = 0; warp < warps; ++warp) result.softmax.sum[k] += sums[warp][column_of(k)];
  }
}

}  // namespace tandem::decode
