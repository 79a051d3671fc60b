// Overlap policy "three-stage": Algorithm 4's main loop. Q K^T of block j, softmax of block j - 1 and P V of
// block j - 2 run at the same time.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// What Algorithm 4 carries from block to block: scores of the last block, probabilities of the one before
/// it, and the factor by which the output has to be scaled before those probabilities are added.
template <ForwardVariant V>
struct ThreeStageCarry {
  float scores[V.block_n / 2];
  BlockProbabilities<V> p;
  OutputRescale scale_o;
};

/// Waits for K's next block and computes its scores (lines 2, 3 and 5, 6).
template <ForwardVariant V>
TANDEM_DEVICE void scores_now(ConsumerState<V>& state, float (&scores)[V.block_n / 2]) {
  ForwardShared<V>& shared = state.shared;
  auto& k_at = state.at.k;
  tile::consumer_wait(shared.k_pipeline, k_at);
  start_scores(state, scores);
  hw::wgmma_wait<0>();
  tile::consumer_release(shared.k_pipeline, k_at);
  k_at.advance();
}

/// Waits for V's next block and adds P V (lines 18-20 and 22-24).
template <ForwardVariant V>
TANDEM_DEVICE void output_now(ConsumerState<V>& state, const ThreeStageCarry<V>& carry) {
  ForwardShared<V>& shared = state.shared;
  auto& v_at = state.at.v;
  tile::consumer_wait(shared.v_pipeline, v_at);
  rescale_output(state, carry.scale_o);
  start_output(state, carry.p);
  hw::wgmma_wait<0>();
  tile::consumer_release(shared.v_pipeline, v_at);
  v_at.advance();
}

/// Lines 7-17 for the positions j in [begin, end) of the loop; `kind` is that of j - 1, whose softmax it is.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void three_stage_blocks(ConsumerState<V>& state, ThreeStageCarry<V>& carry, int begin,
                                      int end) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 7
    float next[V.block_n / 2];

    tile::consumer_wait(shared.k_pipeline, k_at);             // line 8
    tile::scale_rows(state.output, carry.scale_o.by.factor);  // line 11
    state.pingpong.take();
    start_scores(state, next);                     // line 9
    tile::consumer_wait(shared.v_pipeline, v_at);  // line 10
    start_output(state, carry.p);                  // line 12
    state.pingpong.pass();

    carry.scale_o = softmax_block<V, kind>(state, carry.scores, j - 1);  // line 13
    hw::compute_before_wait(state.softmax.row_sum[0] + state.softmax.row_sum[1], shared.k_pipeline.full[0]);
    hw::wgmma_wait<0>();  // line 14
    tile::consumer_release(shared.k_pipeline, k_at);
    tile::consumer_release(shared.v_pipeline, v_at);
    round_probabilities<V>(carry.p, carry.scores);  // line 16
    TANDEM_UNROLL
    for (int i = 0; i < V.block_n / 2; ++i) carry.scores[i] = next[i];  // line 15
    k_at.advance();
    v_at.advance();
  }
}

template <ForwardVariant V, typename Meanwhile>
TANDEM_DEVICE void attend_three_stage(ConsumerState<V>& state, const Meanwhile& meanwhile) {
  const core::BlockLoop& loop = state.loop;
  ThreeStageCarry<V> carry;
  scores_now(state, carry.scores);                                              // lines 2, 3
  carry.scale_o = softmax_block<V, BlockKind::masked>(state, carry.scores, 0);  // line 4
  round_probabilities<V>(carry.p, carry.scores);
  if (loop.count > 1) {
    scores_now(state, carry.scores);  // lines 5, 6
    // The softmax of iteration j is that of position j - 1, so the ranges are one further on.
    const int full_begin = loop.full_begin + 1 > 2 ? loop.full_begin + 1 : 2;
    const int past_full = loop.full_end + 1 < loop.count ? loop.full_end + 1 : loop.count;
    const int full_end = past_full > full_begin ? past_full : full_begin;
    three_stage_blocks<V, BlockKind::masked>(state, carry, 2,
                                             full_begin < loop.count ? full_begin : loop.count);
    three_stage_blocks<V, BlockKind::full>(state, carry, full_begin, full_end);
    three_stage_blocks<V, BlockKind::masked>(state, carry, full_end, loop.count);
    release_queries(state);

    output_now(state, carry);                                                                  // lines 18-20
    carry.scale_o = softmax_block<V, BlockKind::masked>(state, carry.scores, loop.count - 1);  // line 21
    round_probabilities<V>(carry.p, carry.scores);
  } else {
    release_queries(state);
  }
  output_now(state, carry);  // lines 22-24
  meanwhile();               // not before the wait: ptxas would serialise the WGMMAs (C7511)
}

}  // namespace tandem::forward
