// Overlap policy "two-stage": Algorithm 2's main loop. While P V of one block runs, the same warpgroup
// begins the softmax of the next.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Lines 7-17 for the positions [begin, end) of the walk. On entry and exit `p` holds the probabilities of
/// the block before, whose V is the next in V's ring.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void two_stage_blocks(ConsumerState<V>& state, BlockProbabilities<V>& p, int begin, int end) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 7
    float scores[V.block_n / 2];

    take_scales(state, j);
    tile::wait_full(shared.k_ring, k_at);  // line 8
    state.turn.take();
    start_scores(state, scores);           // line 9
    tile::wait_full(shared.v_ring, v_at);  // line 10
    start_output(state, p);                // line 11
    state.turn.pass();

    hw::wgmma_wait<1>();                      // line 12
    tile::release_slot(shared.k_ring, k_at);  // line 15 for K
    if constexpr (!queries_kept_longer<V>) release_queries_after(state, j);
    take_maximum<V, kind>(state, scores, j);  // line 13: m
    hw::compute_before_wait(state.softmax.row_max[0] + state.softmax.row_max[1], shared.k_ring.full[0]);

    // From here on one straight line, in which all else hides the latency of the exponentials; with P in
    // registers little more than the maxima can run beside P V.
    hw::wgmma_wait<0>();                      // line 14
    tile::release_slot(shared.v_ring, v_at);  // line 15 for V
    finish_output(state, p, state.softmax);
    const tile::Rescale rescale = rebase<V, kind>(state);
    const bool rescales = !V.is_8_bit() && (rescales_in_line<V> || rescale.needed());
    exponentiate<V, kind>(state, scores);                          // line 13: P, l
    if (rescales) tile::scale_rows(state.output, rescale.factor);  // line 14
    round_probabilities<V>(p, scores);                             // line 16
    k_at.advance();
    v_at.advance();
  }
}

/// Line 6 for a tile's first block, whose maxima are taken: P and l. O is still 0.
template <BlockKind kind, ForwardVariant V>
TANDEM_DEVICE void begin_probabilities(ConsumerState<V>& state, float (&scores)[V.block_n / 2],
                                       BlockProbabilities<V>& p) {
  rebase<V, kind>(state);
  exponentiate<V, kind>(state, scores);
  round_probabilities<V>(p, scores);
}

/// Lines 3-6: the first block's probabilities.
template <ForwardVariant V>
TANDEM_DEVICE void begin_tile(ConsumerState<V>& state, BlockProbabilities<V>& p) {
  ForwardShared<V>& shared = state.shared;
  tile::RingPosition<V.kv_stages>& k_at = state.at.k;
  float scores[V.block_n / 2];

  take_scales(state, 0);
  tile::wait_full(shared.k_ring, k_at);  // line 3
  // Who walks apart begins a tile while others pass into it, so every block takes a turn.
  if constexpr (walks_apart<V>) state.turn.take();
  start_scores(state, scores);  // line 4
  if constexpr (walks_apart<V>) state.turn.pass();
  hw::wgmma_wait<0>();
  tile::release_slot(shared.k_ring, k_at);  // line 5
  release_queries_after(state, 0);
  take_maximum<V, BlockKind::masked>(state, scores, 0);      // line 6: m
  begin_probabilities<BlockKind::masked>(state, scores, p);  // line 6: P, l
  k_at.advance();
}

/// Lines 18-20.
template <ForwardVariant V>
TANDEM_DEVICE void finish_tile(ConsumerState<V>& state, const BlockProbabilities<V>& p, const Work& work) {
  ForwardShared<V>& shared = state.shared;
  tile::RingPosition<V.kv_stages>& v_at = state.at.v;

  tile::wait_full(shared.v_ring, v_at);  // line 18
  start_output(state, p);                // line 19
  hw::wgmma_wait<0>();
  tile::release_slot(shared.v_ring, v_at);
  finish_output(state, p, state.softmax);
  v_at.advance();
  store_tile(state, work, state.softmax);  // line 20
}

/// Lines 18-20 of the tile in `work` and lines 2-6 of `next`, whose first block is of the kind: one more turn
/// of the main loop, in which P V is the old tile's and the scores are the new one's.
template <BlockKind kind, ForwardVariant V>
TANDEM_DEVICE void pass_to_next_tile(ConsumerState<V>& state, BlockProbabilities<V>& p, const Work& work,
                                     const Work& next) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;
  float scores[V.block_n / 2];

  tile::wait_full(shared.q_ring[state.turn.consumer], q_at);  // line 3, next
  tile::wait_full(shared.k_ring, k_at);                       // line 3, next
  state.turn.take();
  start_scores(state, scores);           // line 4, next
  tile::wait_full(shared.v_ring, v_at);  // line 18, old
  start_output(state, p);                // line 19, old
  state.turn.pass();
  Softmax<V> finished = state.softmax;
  state.begin(next);  // line 2, next
  take_scales(state, 0);

  hw::wgmma_wait<1>();                      // line 4, next
  tile::release_slot(shared.k_ring, k_at);  // line 5, next
  release_queries_after(state, 0);
  take_maximum<V, kind>(state, scores, 0);  // line 6, next: m
  hw::compute_before_wait(state.softmax.row_max[0] + state.softmax.row_max[1], shared.k_ring.full[0]);

  hw::wgmma_wait<0>();                      // line 19, old
  tile::release_slot(shared.v_ring, v_at);  // line 19, old
  finish_output(state, p, finished);
  store_tile(state, work, finished);            // line 20, old
  state.clear_output();                         // line 2, next
  begin_probabilities<kind>(state, scores, p);  // line 6, next: P, l
  k_at.advance();
  v_at.advance();
}

/// At most one block passes by between this tile's last and the next one's first: its keys do before P V,
/// when V's ring has to hold the last block's values and its own.
template <ForwardVariant V>
TANDEM_DEVICE bool can_follow(const Work& work, const Work& next) {
  return !tiles_stand_apart<V> && next.exists() && next.walk.count > 0 &&
         (!walks_apart<V> || work.aside.after + next.aside.before <= 1);
}

/// The tile in `work`, and those after it as long as they can follow without a gap.
template <ForwardVariant V>
TANDEM_DEVICE Work attend_two_stage(ConsumerState<V>& state, Work work, int& round) {
  static_assert(!V.is_8_bit() || product_columns<V> == V.head_dim);  // its slot goes back before its sum
  BlockProbabilities<V> p;
  begin_tile(state, p);
  for (;;) {
    const core::BlockWalk& walk = state.walk;
    const int full_begin = walk.full_begin > 1 ? walk.full_begin : 1;
    const int full_end = walk.full_end > full_begin ? walk.full_end : full_begin;
    if (edge_before<V>) two_stage_blocks<V, BlockKind::masked>(state, p, 1, walk.full_begin);
    two_stage_blocks<V, BlockKind::full>(state, p, full_begin, full_end);
    if (edge_after<V>) two_stage_blocks<V, BlockKind::masked>(state, p, full_end, walk.count);
    if (queries_kept_longer<V> && walk.count > 1) release_queries(state);
    const Work next = find_work<V>(state.args, state.rows(), ++round);
    if (!can_follow<V>(work, next)) {
      finish_tile(state, p, work);
      if (walks_apart<V> && edge_after<V>) pass_by(state, work.aside.after);
      return next;
    }
    const bool passes_by = walks_apart<V> && work.aside.after + next.aside.before > 0;
    if (passes_by) pass_by_keys(state);
    if (V.mask == MaskKind::prefix && next.walk.full_begin == 0 && next.walk.full_end > 0) {
      pass_to_next_tile<BlockKind::full>(state, p, work, next);
    } else {
      pass_to_next_tile<BlockKind::masked>(state, p, work, next);
    }
    if (passes_by) pass_by_values(state);
    work = next;
  }
}

}  // namespace tandem::forward
