// Overlap policy "serial": Algorithm 1's main loop. Each product is waited for at once; only different
// warpgroups, and the producer, overlap.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Lines 15-23 for the key blocks [begin, end).
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void serial_blocks(ConsumerState<V>& state, int begin, int end) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 15
    float scores[V.block_n / 2];
    tile::Probabilities<V.block_n> p;

    tile::wait_full(shared.k_ring, k_at);  // line 16
    start_scores(state, scores);           // line 17
    state.turn.pass();
    hw::wgmma_wait<0>();
    tile::release_slot(shared.k_ring, k_at);  // line 22 for K, which nothing reads any more
    release_queries_after(state, j);

    const tile::Rescale rescale = softmax_block<V, kind>(state, scores, j);  // lines 18, 19
    tile::round_probabilities<V.operand>(p, scores);

    tile::wait_full(shared.v_ring, v_at);  // line 20
    rescale_output(state, rescale);
    state.turn.take();
    start_output(state, p);  // line 21
    hw::wgmma_wait<0>();
    tile::release_slot(shared.v_ring, v_at);  // line 22
    k_at.advance();
    v_at.advance();
  }
}

template <ForwardVariant V>
TANDEM_DEVICE void attend_serial(ConsumerState<V>& state, const core::BlockRanges& blocks) {
  state.turn.take();
  serial_blocks<V, BlockKind::masked>(state, blocks.begin, blocks.full_begin);
  serial_blocks<V, BlockKind::full>(state, blocks.full_begin, blocks.full_end);
  serial_blocks<V, BlockKind::masked>(state, blocks.full_end, blocks.end);
  state.turn.pass();
}

}  // namespace tandem::forward
