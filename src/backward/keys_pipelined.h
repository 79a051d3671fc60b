// The main loop with S one block of queries ahead and dQ one behind. Nothing that crosses warpgroups is
// waited for in the block that made it, so they drift apart, and one's products run beside the other's
// softmax.
#pragma once

#include "backward/keys_consumer.h"

namespace tandem::backward {

/// dS of step i is shared as number i + 1: number 0 is zeros, so that every block has a dQ before it, and no
/// product stands under a condition.
inline constexpr int number_of_first_ds = 1;

/// Lines 22-27 of one block of queries, whose scores are there, line 28 of the block before, and lines 19-21
/// of the next one; behind the last one its own scores are computed once more and dropped.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void pipelined_block(KeysState<V>& state, float (&scores)[V.block_m / 2], int block,
                                   bool has_next) {
  KeysShared<V>& shared = state.shared;
  const int step = state.step;
  tile::Probabilities<V.block_m> p, ds;
  {
    float dp[V.block_m / 2];
    tile::wait_full(shared.dout_ring, state.dout_at());  // lines 22, 20 (D)
    if constexpr (!V.softcap) start_dp(state, dp);       // line 23
    exponentiate<V, kind, V.block_m>(state.args, state.limits, block * V.block_m,
                                     shared.lse_log2[state.q_at().slot].value, scores, p);  // line 24
    if constexpr (rounds_early<V>) start_dv(state, p);                                      // line 26
    if constexpr (V.softcap) {
      hw::wgmma_wait<0>();  // P and dP together are more than the registers hold
      start_dp(state, dp);  // line 23
    }
    hw::wgmma_wait<rounds_early<V> && !V.softcap ? 1 : 0>();
    differentiate<V, V.block_m>(shared.delta[state.dout_at().slot].value, scores, dp, p, ds);  // line 25
    if constexpr (!rounds_early<V>) start_dv(state, p);                                        // line 26
  }
  if constexpr (adds_dq<V>) share_ds(state, number_of_first_ds + step, ds);
  start_dk(state, ds);  // line 27
  hw::wgmma_wait<1>();
  release_dout(state);

  float dq[part_accumulators];
  if constexpr (adds_dq<V>) start_dq(state, step, dq);  // line 28 of the block before
  hw::wgmma_wait<adds_dq<V> ? 1 : 0>();
  release_q(state);
  if (has_next) {
    ++state.step;
    tile::wait_full(shared.q_ring, state.q_at());  // line 19 of the next block
  }
  start_scores(state, state.q_at().slot, scores);  // line 21 of the next block
  if constexpr (adds_dq<V>) {
    hw::wgmma_wait<1>();
    shared.dq.ds_ring.release(ds_at<V>(step));
    if (step > 0) hand_over_dq(state, step - 1, dq);  // line 28 of the block before
  }
  hw::wgmma_wait<0>();  // here, for a product in flight from one turn to the next is what ptxas serialises
}

/// Line 28 of the last block.
template <BackwardVariant V>
TANDEM_DEVICE void finish_dq(KeysState<V>& state) {
  float dq[part_accumulators];
  start_dq(state, number_of_first_ds + state.step, dq);
  hw::wgmma_wait<0>();
  hand_over_dq(state, state.step, dq);
}

/// Lines 18-29 for the queries of all heads of the group.
template <BackwardVariant V>
TANDEM_DEVICE void walk_pipelined(KeysState<V>& state, const KeyWork& work) {
  const core::BlockRanges& blocks = work.blocks;
  int left = work.count() * state.args.group.value();
  float scores[V.block_m / 2];
  if constexpr (adds_dq<V>) share_ds(state, 0, tile::Probabilities<V.block_m>{});
  tile::wait_full(state.shared.q_ring, state.q_at());  // line 19
  start_scores(state, state.q_at().slot, scores);      // line 21
  hw::wgmma_wait<0>();
  for (int head = 0; head < state.args.group.value(); ++head) {
    for_each_block<V>(blocks, [&]<BlockKind kind>(int block) {
      pipelined_block<V, kind>(state, scores, block, --left > 0);
    });
  }
  if constexpr (adds_dq<V>) finish_dq(state);
}

}  // namespace tandem::backward
