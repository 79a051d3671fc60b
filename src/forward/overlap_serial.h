// Overlap policy "serial": Algorithm 1's main loop. Each product is waited for at once; only different
// warpgroups, and the producer, overlap.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Heads that leave few registers beside their products.
template <ForwardVariant V>
inline constexpr bool is_wide_8_bit = V.is_8_bit() && V.head_dim > 128;

/// Lines 18 and 19 come ahead of line 21's wait. In kernels of wide 8-bit heads it hangs on this verb whether
/// ptxas serialises the products: those of bands need one, those of prefixes none
/// (docs/performance/ptxas.md).
template <ForwardVariant V>
TANDEM_DEVICE void keep_softmax_ahead(ConsumerState<V>& state) {
  const Softmax<V>& softmax = state.softmax;
  hw::Barrier& witness = state.shared.k_pipeline.full[0];
  if constexpr (!is_wide_8_bit<V>) {
    hw::compute_before_wait(softmax.row_sum[0] + softmax.row_sum[1], witness);
  } else if constexpr (V.mask == MaskKind::band) {
    hw::compute_before_wait(softmax.row_max[0], witness);
  }
}

/// Lines 15-23 for the positions [begin, end) of the loop.
template <ForwardVariant V, BlockKind kind, typename Meanwhile>
TANDEM_DEVICE void serial_blocks(ConsumerState<V>& state, int begin, int end, const Meanwhile& meanwhile) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 15
    Scores<V> scores;
    BlockProbabilities<V> p;

    begin_scores<V>(scores);
    tile::consumer_wait(shared.k_pipeline, k_at);  // line 16
    take_scales(state);
    start_scores(state, scores);  // line 17
    state.pingpong.pass();
    hw::wgmma_wait<0>();
    tile::consumer_release<releasing_lane<V>>(shared.k_pipeline,
                                              k_at);  // line 22 for K, which nothing reads any more
    const bool last = j + 1 == state.loop.count;
    if (last) release_queries(state);

    const OutputRescale rescale = softmax_block<V, kind>(state, scores, j);  // lines 18, 19
    round_probabilities<V>(p, scores);

    tile::consumer_wait(shared.v_pipeline, v_at);  // line 20
    rescale_output(state, rescale);
    keep_softmax_ahead(state);
    state.pingpong.take();
    start_output(state, p);  // line 21
    if (!is_wide_8_bit<V> && last) meanwhile();
    wait_for_output<V>();
    finish_output(state, p, state.softmax);
    tile::consumer_release<releasing_lane<V>>(shared.v_pipeline, v_at);  // line 22
    k_at.advance();
    v_at.advance();
  }
}

template <ForwardVariant V, typename Meanwhile>
TANDEM_DEVICE void attend_serial(ConsumerState<V>& state, const Meanwhile& meanwhile) {
  const core::BlockLoop& loop = state.loop;
  state.pingpong.take();
  serial_blocks<V, BlockKind::masked>(state, 0, loop.full_begin, meanwhile);
  serial_blocks<V, BlockKind::full>(state, loop.full_begin, loop.full_end, meanwhile);
  serial_blocks<V, BlockKind::masked>(state, loop.full_end, loop.count, meanwhile);
  if (is_wide_8_bit<V>) meanwhile();
  state.pingpong.pass();
}

}  // namespace tandem::forward
