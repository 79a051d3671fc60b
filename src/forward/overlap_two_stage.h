// Overlap policy "two-stage": Algorithm 2's main loop. While P V of one block runs, the same warpgroup
// computes the softmax of the next.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Lines 7-17 for the key blocks [begin, end). On entry and exit `p` holds the probabilities of the block
/// before, whose V is the next in V's ring.
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

    hw::wgmma_wait<1>();                                                     // line 12
    tile::release_slot(shared.k_ring, k_at);                                 // line 15 for K
    const tile::Rescale rescale = softmax_block<V, kind>(state, scores, j);  // line 13

    hw::compute_before_wait(state.softmax.row_sum[0] + state.softmax.row_sum[1], shared.k_ring.full[0]);
    hw::wgmma_wait<0>();                              // line 14
    tile::release_slot(shared.v_ring, v_at);          // line 15 for V
    rescale_output(state, rescale);                   // line 14
    tile::round_probabilities<V.operand>(p, scores);  // line 16
    k_at.advance();
    v_at.advance();
  }
}

template <ForwardVariant V>
TANDEM_DEVICE void attend_two_stage(ConsumerState<V>& state, const core::BlockRanges& blocks) {
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
    softmax_block<V, BlockKind::masked>(state, scores, blocks.begin);  // line 6; O is still 0
    tile::round_probabilities<V.operand>(p, scores);
  }
  const int next = blocks.begin + 1;
  const int full_begin = next > blocks.full_begin ? next : blocks.full_begin;
  const int full_end = full_begin > blocks.full_end ? full_begin : blocks.full_end;
  two_stage_blocks<V, BlockKind::masked>(state, p, next, blocks.full_begin);
  two_stage_blocks<V, BlockKind::full>(state, p, full_begin, full_end);
  two_stage_blocks<V, BlockKind::masked>(state, p, full_end, blocks.end);
  release_queries_after(state, state.last_block);

  tile::wait_full(shared.v_ring, v_at);  // line 18
  start_output(state, p);                // line 19
  hw::wgmma_wait<0>();
  tile::release_slot(shared.v_ring, v_at);
  v_at.advance();
}

}  // namespace tandem::forward
