// Algorithm "paired" where keys hold their values (multi-head latent attention): O of 64 rows and 512 columns
// is too much for one warpgroup, and a block of keys, with which the queries come, for more than two in
// shared memory. So both warpgroups have the same rows of every block: each makes the scores of half its
// keys and the outputs of half the columns. They agree on maxima and swap probabilities in shared memory.
//
// Sources: Shah et al., "FlashAttention-3", 2024, section 3.1, for two warpgroups on one tile; DeepSeek-AI,
// "DeepSeek-V2", 2024, section 2.1, for keys that hold their values.
#pragma once

#include "decode/paired.h"

namespace tandem::decode {

/// A warpgroup's keys of a block, and its columns of O.
template <DecodeVariant V>
struct OwnHalf {
  static constexpr int keys = V.block_n / 2, columns = V.value_dim / 2;
  static constexpr int steps = keys / tile::k_step;  ///< of the products with values
};

/// The warpgroup's half of S = Q K^T.
template <DecodeVariant V>
TANDEM_DEVICE void start_half_scores(Consumer<V>& consumer, float (&scores)[OwnHalf<V>::keys / 2]) {
  const auto& keys = consumer.shared.k[consumer.k_at.stage].tile[0];
  const int first_byte = OwnHalf<V>::keys * own_warpgroup<V>() * tile::row_bytes;
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int step = 0; step < V.head_dim / tile::k_step; ++step) {
    hw::wgmma_ss<V.operand, OwnHalf<V>::keys, hw::Major::k>(
        scores, consumer.shared.q.k_major(step), keys.k_major(step).advanced(first_byte),
        step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
  hw::wgmma_commit();
}

/// Masks what the rows don't see of the warpgroup's keys, and takes the maxima of both halves.
template <DecodeVariant V>
TANDEM_DEVICE void agree_on_maxima(Consumer<V>& consumer, const WorkTile& work, int key,
                                   tile::OnlineSoftmax& softmax, float (&scores)[OwnHalf<V>::keys / 2]) {
  const int warpgroup = own_warpgroup<V>(), row = PairedResult<V>::upper_row();
  consumer.cap(scores);
  if (consumer.needs_mask(work, key)) {
    const RowLimits limits[2] = {consumer.limits_of(work, row), consumer.limits_of(work, row + 8)};
    const int own_key = key + OwnHalf<V>::keys * warpgroup + 2 * static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int j = 0; j < OwnHalf<V>::keys / 2; ++j) {
      const auto [begin, end] = limits[tile::row_of_accumulator(j)];
      const int k = own_key + tile::column_of_accumulator(j);
      if (k < begin || k >= end) scores[j] = tile::minus_infinity;
    }
  }
  softmax.update_row_max(scores);
  auto& maxima = consumer.shared.own.exchange.maxima;
  if (hw::lane_index() % 4 == 0) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) maxima[warpgroup][row + 8 * i] = softmax.row_max[i];
  }
  sync_consumers<V>();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i)
    softmax.row_max[i] = hw::max(softmax.row_max[i], maxima[1 - warpgroup][row + 8 * i]);
}

/// O += P V for the warpgroup's columns: first with its own probabilities, from registers, while the other's
/// are on their way.
template <DecodeVariant V>
TANDEM_DEVICE void multiply_both_halves(Consumer<V>& consumer,
                                        const tile::Probabilities<OwnHalf<V>::keys>& own,
                                        float (&output)[OwnHalf<V>::columns / 2]) {
  using Half = OwnHalf<V>;
  const int warpgroup = own_warpgroup<V>();
  const int first_panel = Half::columns / tile::panel_columns * warpgroup;
  const auto& values = consumer.values().tile[0];
  const auto& p = consumer.shared.own.exchange.p;
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int step = 0; step < Half::steps; ++step)
    hw::wgmma_rs<V.operand, Half::columns, hw::Major::mn>(
        output, own.fragment[step], values.mn_major(Half::steps * warpgroup + step, first_panel),
        hw::Accumulate::add);
  hw::wgmma_commit();
  sync_consumers<V>();
  TANDEM_UNROLL
  for (int step = 0; step < Half::steps; ++step) {
    const int others = Half::steps * (1 - warpgroup) + step;
    hw::wgmma_ss<V.operand, Half::columns, hw::Major::mn>(
        output, p.k_major(others), values.mn_major(others, first_panel), hw::Accumulate::add);
  }
  hw::wgmma_commit();
}

/// Visits the blocks of the work tile. A warp whose rows don't exist does as the others do.
template <DecodeVariant V>
TANDEM_DEVICE void attend_shared_rows(Consumer<V>& consumer, const WorkTile& work,
                                      tile::OnlineSoftmax& softmax, PairedResult<V>& result) {
  auto& exchange = consumer.shared.own.exchange;
  for (int key = work.begin; key < work.end; key += V.block_n) {
    float scores[OwnHalf<V>::keys / 2];
    tile::Probabilities<OwnHalf<V>::keys> p;

    consumer.wait_keys(work, key);
    start_half_scores(consumer, scores);  // S = Q @ K', half of the keys
    hw::wgmma_wait<0>();

    agree_on_maxima(consumer, work, key, softmax, scores);
    const tile::Rescale rescale = softmax.template rebase<true>(consumer.args.scale_log2);
    softmax.exponentiate(scores, consumer.args.scale_log2);  // P = exp(S - row_max)
    tile::round_probabilities<V.operand>(p, scores);
    tile::store_rounded<V.operand>(exchange.p, first_row_of_warp<V>(), scores,
                                   OwnHalf<V>::keys * own_warpgroup<V>());
    hw::fence_async_proxy();
    if (rescale.needed()) tile::scale_rows(result.output, rescale.factor);  // O = correction * O

    multiply_both_halves(consumer, p, result.output);  // O += P @ V, half of the columns
    hw::wgmma_wait<0>();
    consumer.release_values();
  }
}

/// Sums of rows over the keys of both warpgroups.
template <DecodeVariant V>
TANDEM_DEVICE void complete_sums(Consumer<V>& consumer, const tile::OnlineSoftmax& softmax,
                                 PairedResult<V>& result) {
  auto& sums = consumer.shared.own.exchange.sums;
  const int warpgroup = own_warpgroup<V>(), row = result.upper_row();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    result.reference[i] = softmax.reference[i];
    result.sum[i] = tile::quad_sum(softmax.row_sum[i]);
    if (hw::lane_index() % 4 == 0) sums[warpgroup][row + 8 * i] = result.sum[i];
  }
  sync_consumers<V>();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) result.sum[i] += sums[1 - warpgroup][row + 8 * i];
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_shared_rows_and_finish(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                                                 const WorkTile& work) {
  tile::OnlineSoftmax softmax;
  PairedResult<V> result;
  TANDEM_UNROLL
  for (float& x : result.output) x = 0.f;
  attend_shared_rows(consumer, work, softmax, result);
  complete_sums(consumer, softmax, result);
  finish_work(consumer, scheduler, work, result);
}

}  // namespace tandem::decode
