// Overlap policy "two-stage": Algorithm 2's main loop. While P V of one block runs, the same warpgroup
// begins the softmax of the next.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Up to 128 columns the rescaling hides between the exponentials, as long as no branch parts them; wider
/// outputs ask first whether there is anything to do.
template <ForwardVariant V>
inline constexpr bool rescales_in_line = V.head_dim <= 128;

/// Lines 7-17 for the positions [begin, end) of the walk. On entry and exit `p` holds the probabilities of
/// the block before, whose V is the next in V's ring.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void two_stage_blocks(ConsumerState<V>& state, tile::Probabilities<V.block_n>& p, int begin,
                                    int end) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 7
    float scores[V.block_n / 2];

    tile::wait_full(shared.k_ring, k_at);  // line 8
    state.turn.take();
    start_scores(state, scores);           // line 9
    tile::wait_full(shared.v_ring, v_at);  // line 10
    start_output(state, p);                // line 11
    state.turn.pass();

    hw::wgmma_wait<1>();                      // line 12
    tile::release_slot(shared.k_ring, k_at);  // line 15 for K
    take_maximum<V, kind>(state, scores, j);  // line 13: m
    hw::compute_before_wait(state.softmax.row_max[0] + state.softmax.row_max[1], shared.k_ring.full[0]);

    // From here on one straight line, in which all else hides the latency of the exponentials; with P in
    // registers little more than the maxima can run beside P V.
    hw::wgmma_wait<0>();                      // line 14
    tile::release_slot(shared.v_ring, v_at);  // line 15 for V
    const tile::Rescale rescale = rebase<V, kind>(state);
    const bool rescales = rescales_in_line<V> || rescale.needed();
    exponentiate<V, kind>(state, scores);                          // line 13: P, l
    if (rescales) tile::scale_rows(state.output, rescale.factor);  // line 14
    tile::round_probabilities<V.operand>(p, scores);               // line 16
    k_at.advance();
    v_at.advance();
  }
}

template <ForwardVariant V, typename Meanwhile>
TANDEM_DEVICE void attend_two_stage(ConsumerState<V>& state, const Meanwhile& meanwhile) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;
  tile::Probabilities<V.block_n> p;
  {
    float scores[V.block_n / 2];
    tile::wait_full(shared.k_ring, k_at);  // line 3
    start_scores(state, scores);           // line 4
    hw::wgmma_wait<0>();
    tile::release_slot(shared.k_ring, k_at);  // line 5
    k_at.advance();
    softmax_block<V, BlockKind::masked>(state, scores, 0);  // line 6; O is still 0
    tile::round_probabilities<V.operand>(p, scores);
  }
  const core::BlockWalk& walk = state.walk;
  const int full_begin = walk.full_begin > 1 ? walk.full_begin : 1;
  const int full_end = walk.full_end > full_begin ? walk.full_end : full_begin;
  two_stage_blocks<V, BlockKind::masked>(state, p, 1, walk.full_begin);
  two_stage_blocks<V, BlockKind::full>(state, p, full_begin, full_end);
  two_stage_blocks<V, BlockKind::masked>(state, p, full_end, walk.count);
  release_queries(state);

  tile::wait_full(shared.v_ring, v_at);  // line 18
  start_output(state, p);                // line 19
  meanwhile();
  hw::wgmma_wait<0>();
  tile::release_slot(shared.v_ring, v_at);
  v_at.advance();
}

}  // namespace tandem::forward
