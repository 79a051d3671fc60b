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
  auto& shared = consumer.shared.own.exchange.maxima;
  give_columns(shared, maxima);
  sync_consumers<V>();
  take_columns(maxima, shared, [](float a, float b) { return hw::max(a, b); });
}

/// Brings the references of columns up where a score of this block is far above them, as the first block's
/// are, and O to the new ones; else warps only agree that none is.
template <DecodeVariant V>
TANDEM_DEVICE void agree_on_references(Consumer<V>& consumer, bool is_first,
                                       const TransposedScores<V>& scores, TransposedResult<V>& result) {
  constexpr float room = ColumnSoftmax<V.query_rows>::head_room;
  const float scale = consumer.args.scale_log2;
  if (room > 0.f && !is_first && !any_consumer<V>(result.softmax.exceeds(scores, scale))) return;
  float maxima[result.own], correction[result.own];
  reduce_maxima<V>(scores, maxima);
  exchange_maxima(consumer, maxima);  // col_max = colmax(S)
  result.softmax.raise(maxima, correction, scale, room);
  result.scale(correction);  // O = exp(old_col_max - col_max) * O
}

/// Of a block's scores to probabilities, rounded.
template <DecodeVariant V>
TANDEM_DEVICE void make_probabilities(Consumer<V>& consumer, const WorkTile& work, int key,
                                      TransposedScores<V>& scores, TransposedResult<V>& result) {
  cap_and_mask(consumer, work, key, scores);
  agree_on_references(consumer, key == work.begin, scores, result);  // col_max, O = exp(...) * O
  result.softmax.template exponentiate<V.products()>(scores,
                                                     consumer.args.scale_log2);  // P = exp(S - col_max)
}

/// P^T to shared memory, query rows by keys, where the product with values reads those of all warps.
template <DecodeVariant V>
TANDEM_DEVICE void publish_probabilities(Consumer<V>& consumer, const TransposedScores<V>& scores) {
  TANDEM_UNROLL
  for (int tile = 0; tile < V.subtiles(); ++tile) {
    store_transposed<V>(consumer.shared.own.p[tile], 0, scores[tile]);
  }
  hw::fence_async_proxy();
  sync_consumers<V>();
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
          consumer.shared.own.p[step / steps].k_major(step % steps), hw::Accumulate::add);
    }
  }
  hw::wgmma_commit();
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_shared_p(Consumer<V>& consumer, const WorkTile& work, TransposedResult<V>& result) {
  for (int key = work.begin; key < work.end; key += V.block_n) {
    float scores[V.subtiles()][V.query_rows / 2];

    consumer.wait_keys(work, key);
    start_scores(consumer, scores);  // S = K[range(kv_start, kv_start+BN),:] @ Q'
    hw::wgmma_wait<0>();
    consumer.release_keys();

    make_probabilities(consumer, work, key, scores, result);
    publish_probabilities(consumer, scores);

    consumer.wait_values();
    start_output(consumer, result);  // O += (V[range(kv_start, kv_start+BN), :])' @ P
    hw::wgmma_wait<0>();
    consumer.release_values();
  }
}

/// Sums of columns over the keys of all threads; exact ones where somebody wants lse.
template <DecodeVariant V>
TANDEM_DEVICE void complete_shared_p(Consumer<V>& consumer, TransposedResult<V>& result) {
  using Softmax = ColumnSoftmax<V.query_rows>;
  using Sums = float[Softmax::own];
  auto& exchange = consumer.shared.own.exchange;
  Softmax& softmax = result.softmax;
  const bool wants_exact = Softmax::sums_are_rounded && consumer.args.lse.data != nullptr;
  const auto give = [](Sums& own, auto& shared) {
    TANDEM_UNROLL
    for (float& x : own) x = column_sum(x);
    give_columns(shared, own);
  };
  const auto add = [](float a, float b) { return a + b; };
  give(softmax.sum, exchange.sums);
  if (wants_exact) give(softmax.exact_sum, exchange.exact_sums);
  sync_consumers<V>();
  take_columns(softmax.sum, exchange.sums, add);
  if (!wants_exact) return;
  take_columns(softmax.exact_sum, exchange.exact_sums, add);
  result.take_exact_sums();
}

}  // namespace tandem::decode
