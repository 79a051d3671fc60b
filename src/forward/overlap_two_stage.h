// Overlap policy "two-stage": Algorithm 2's main loop. While P V of one block runs, the same warpgroup
// begins the softmax of the next.
#pragma once

#include "forward/consumer.h"

namespace tandem::forward {

/// Line 13 up to the wait for P V: m. With P in registers little more can run beside that product.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE OutputRescale begin_softmax(ConsumerState<V>& state, Scores<V>& scores, int position) {
  Softmax<V>& softmax = state.softmax;
  hw::Barrier& witness = state.shared.k_pipeline.full[0];
  OutputRescale rescale{{{1.f, 1.f}}, take_maximum<V, kind>(state, scores, position)};
  if constexpr (V.decisions.begins_early) {
    if (rescale.needed) rescale.by = softmax.raise(state.args.scale_log2);
    softmax.template exponentiate<tile::Part::early>(scores, state.args.scale_log2);
    hw::compute_before_wait(softmax.row_sum[0], witness);
  } else {
    hw::compute_before_wait(softmax.row_max[0] + softmax.row_max[1], witness);
  }
  return rescale;
}
/// The rest of line 13, P and l, behind line 14's rescaling: one straight line, in which all else hides the
/// latency of the exponentials.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void finish_softmax(ConsumerState<V>& state, Scores<V>& scores, const OutputRescale& rescale) {
  if constexpr (V.decisions.begins_early) {
    rescale_output(state, rescale);
    state.softmax.template exponentiate<tile::Part::late>(scores, state.args.scale_log2);
  } else {
    if constexpr (V.references_stay()) {  // in one branch, or it takes two
      if (rescale.needed) tile::scale_rows(state.output, state.softmax.raise(state.args.scale_log2).factor);
    }
    exponentiate<V, kind>(state, scores);
  }
}

/// Lines 7-17 for the positions [begin, end) of the loop. On entry and exit `p` holds the probabilities of
/// the block before, whose V is the next in V's pipeline.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void two_stage_blocks(ConsumerState<V>& state, BlockProbabilities<V>& p, int begin, int end) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;

  for (int j = begin; j < end; ++j) {  // line 7
    Scores<V> scores;

    begin_scores<V>(scores);
    tile::consumer_wait(shared.k_pipeline, k_at);  // line 8
    take_scales(state);
    state.pingpong.take();
    start_scores(state, scores);                   // line 9
    tile::consumer_wait(shared.v_pipeline, v_at);  // line 10
    start_output(state, p);                        // line 11
    state.pingpong.pass();

    hw::wgmma_wait<1>();                                                 // line 12
    tile::consumer_release<releasing_lane<V>>(shared.k_pipeline, k_at);  // line 15 for K
    if constexpr (!V.decisions.queries_kept_longer) release_queries_after(state, j);
    const OutputRescale rescale = begin_softmax<V, kind>(state, scores, j);  // line 13: m
    hw::wgmma_wait<0>();                                                     // line 14
    tile::consumer_release<releasing_lane<V>>(shared.v_pipeline, v_at);      // line 15 for V
    finish_output(state, p, state.softmax);
    finish_softmax<V, kind>(state, scores, rescale);  // line 13: P, l; line 14
    round_probabilities<V>(p, scores);                // line 16
    k_at.advance();
    v_at.advance();
  }
}

/// Line 6 for a tile's first block, whose maxima are taken: P and l. O is still 0.
template <BlockKind kind, ForwardVariant V>
TANDEM_DEVICE void begin_probabilities(ConsumerState<V>& state, Scores<V>& scores, BlockProbabilities<V>& p) {
  if constexpr (V.references_stay()) state.softmax.raise(state.args.scale_log2);
  exponentiate<V, kind>(state, scores);
  round_probabilities<V>(p, scores);
}

/// Lines 3-6: the first block's probabilities.
template <ForwardVariant V>
TANDEM_DEVICE void begin_tile(ConsumerState<V>& state, BlockProbabilities<V>& p) {
  ForwardShared<V>& shared = state.shared;
  tile::PipelineState<V.kv_stages>& k_at = state.at.k;
  Scores<V> scores;

  begin_scores<V>(scores);
  tile::consumer_wait(shared.k_pipeline, k_at);  // line 3
  take_scales(state);
  // Who loops on its own begins a tile while others pass into it, so every block takes a turn.
  if constexpr (V.decisions.loops_apart) state.pingpong.take();
  start_scores(state, scores);  // line 4
  if constexpr (V.decisions.loops_apart) state.pingpong.pass();
  hw::wgmma_wait<0>();
  tile::consumer_release<releasing_lane<V>>(shared.k_pipeline, k_at);  // line 5
  release_queries_after(state, 0);
  take_maximum<V, BlockKind::masked>(state, scores, 0);      // line 6: m
  begin_probabilities<BlockKind::masked>(state, scores, p);  // line 6: P, l
  k_at.advance();
}

/// Lines 18-20.
template <ForwardVariant V>
TANDEM_DEVICE void finish_tile(ConsumerState<V>& state, const BlockProbabilities<V>& p, const Work& work) {
  ForwardShared<V>& shared = state.shared;
  tile::PipelineState<V.kv_stages>& v_at = state.at.v;

  tile::consumer_wait(shared.v_pipeline, v_at);  // line 18
  start_output(state, p);                        // line 19
  hw::wgmma_wait<0>();
  tile::consumer_release<releasing_lane<V>>(shared.v_pipeline, v_at);
  finish_output(state, p, state.softmax);
  v_at.advance();
  store_own_rows(state, work, statistics_of<V>(state.args, state.softmax));  // line 20
}

/// Lines 18-20 of the tile in `work` and lines 2-6 of `next`, whose first block is of the kind: one more turn
/// of the main loop, in which P V is the old tile's and the scores are the new one's.
template <BlockKind kind, ForwardVariant V>
TANDEM_DEVICE void pass_to_next_tile(ConsumerState<V>& state, BlockProbabilities<V>& p, const Work& work,
                                     const Work& next) {
  ForwardShared<V>& shared = state.shared;
  auto& [q_at, k_at, v_at] = state.at;
  Scores<V> scores;

  begin_scores<V>(scores);
  tile::consumer_wait(shared.q_pipeline[state.pingpong.consumer], q_at);  // line 3, next
  tile::consumer_wait(shared.k_pipeline, k_at);                           // line 3, next
  state.pingpong.take();
  start_scores(state, scores);                   // line 4, next
  tile::consumer_wait(shared.v_pipeline, v_at);  // line 18, old
  start_output(state, p);                        // line 19, old
  state.pingpong.pass();
  Softmax<V> last = state.softmax;
  RowStatistics finished{};  // as soon as sums are complete: of 8-bit blocks they come with the product
  if constexpr (!V.is_8_bit()) finished = statistics_of<V>(state.args, last);
  state.begin(next);  // line 2, next
  take_scales(state);

  hw::wgmma_wait<1>();                                                 // line 4, next
  tile::consumer_release<releasing_lane<V>>(shared.k_pipeline, k_at);  // line 5, next
  release_queries_after(state, 0);
  take_maximum<V, kind>(state, scores, 0);  // line 6, next: m
  hw::compute_before_wait(state.softmax.row_max[0] + state.softmax.row_max[1], shared.k_pipeline.full[0]);

  hw::wgmma_wait<0>();                                                 // line 19, old
  tile::consumer_release<releasing_lane<V>>(shared.v_pipeline, v_at);  // line 19, old
  finish_output(state, p, last);
  if constexpr (V.is_8_bit()) finished = statistics_of<V>(state.args, last);
  store_own_rows<Stores::aside>(state, work, finished);  // line 20, old
  state.clear_output();                                  // line 2, next
  begin_probabilities<kind>(state, scores, p);           // line 6, next: P, l
  k_at.advance();
  v_at.advance();
}

/// At most one block is skipped between this tile's last and the next one's first: its keys do before P V,
/// when V's pipeline has to hold the last block's values and its own.
template <ForwardVariant V>
TANDEM_DEVICE bool can_follow(const ConsumerState<V>& state, const Work& work, const Work& next) {
  const TileRows rows = state.rows();
  return !V.decisions.tiles_stand_apart && stores_aside<V>(state.args, work, rows.first + rows.count - 1) &&
         next.exists() && next.loop.count > 0 &&
         (!V.decisions.loops_apart || work.aside.after + next.aside.before <= 1);
}

/// The tile in `work`, and those after it as long as they can follow without a gap.
template <ForwardVariant V>
TANDEM_DEVICE Work attend_two_stage(ConsumerState<V>& state, Work work, int& round) {
  static_assert(!V.is_8_bit() || product_columns<V> == V.value_dim);  // its stage goes back before its sum
  BlockProbabilities<V> p;
  begin_tile(state, p);
  for (;;) {
    const core::BlockLoop& loop = state.loop;
    const int full_begin = loop.full_begin > 1 ? loop.full_begin : 1;
    const int full_end = loop.full_end > full_begin ? loop.full_end : full_begin;
    if (V.decisions.edge_before) two_stage_blocks<V, BlockKind::masked>(state, p, 1, loop.full_begin);
    two_stage_blocks<V, BlockKind::full>(state, p, full_begin, full_end);
    if (V.decisions.edge_after) two_stage_blocks<V, BlockKind::masked>(state, p, full_end, loop.count);
    if (V.decisions.queries_kept_longer && loop.count > 1) release_queries(state);
    const Work next = find_work<V>(state.args, state.rows(), ++round);
    if (!can_follow(state, work, next)) {
      finish_tile(state, p, work);
      if (V.decisions.loops_apart && V.decisions.edge_after) skip_blocks(state, work.aside.after);
      return next;
    }
    const bool passes_by = V.decisions.loops_apart && work.aside.after + next.aside.before > 0;
    if (passes_by) skip_keys(state);
    if (V.mask == MaskKind::prefix && next.loop.full_begin == 0 && next.loop.full_end > 0) {
      pass_to_next_tile<BlockKind::full>(state, p, work, next);
    } else {
      pass_to_next_tile<BlockKind::masked>(state, p, work, next);
    }
    if (passes_by) skip_values(state);
    work = next;
  }
}

}  // namespace tandem::forward
