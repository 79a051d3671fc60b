// The main loop with S one block of queries ahead and dQ one behind. Nothing that crosses warpgroups is
// waited for in the block that made it, and pingpong keeps them apart, so that one's products run beside the
// other's softmax. What was stored for others is published behind the next products: the fence waits for the
// stores, which wait for shared memory behind the products before.
#pragma once

#include "backward/keys_consumer.h"
#include "backward/pingpong.h"

namespace tandem::backward {

/// dS of step i is shared as number i + 1: number 0 is zeros, so that every block has a dQ before it, and no
/// product stands under a condition. Of a further tile's first block it is the last one's of the tile before,
/// times keys that it has nothing to do with; nobody stores that.
inline constexpr int number_of_first_ds = 1;

/// So many groups of the statistics L are loaded ahead of the softmax, while dP's product is issued: the
/// products keep shared memory busy. With a cap registers are too few.
template <BackwardVariant V>
inline constexpr int groups_ahead = V.softcap         ? 0
                                    : V.block_m == 64 ? 2
                                                      : 1;

/// Whether the turn of the softmax ends when dS is known, not when it is stored: where the turn has dV's
/// product in it, the other consumer would wait for too long.
template <BackwardVariant V>
inline constexpr bool passes_ahead_of_store = !rounds_early<V>;

/// Whether a part of dQ is published in the next block. With a cap registers are too few for what that takes.
template <BackwardVariant V>
inline constexpr bool publishes_late = !V.softcap;

/// Where a block stands in its tile. Read from shared memory in one go, ahead of the products, behind which
/// reads queue.
struct BlockPlace {
  bool is_second, is_third;  ///< or a later one
  bool has_next;
  KeyWork::Part before;  ///< of the block before, if there is one

  TANDEM_DEVICE static BlockPlace of(const KeyWork& work, int step) {
    const int behind = step - work.first_step;
    return {behind > 0, behind > 1, step + 1 < work.end_step, work.part_of(step - 1)};
  }
};

/// Lines 22-27 of one block of queries, whose scores are there, line 28 of the block before, and lines 19-21
/// of the next one; behind the last one its own scores are computed once more and dropped.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void pipelined_block(KeysState<V>& state, float (&scores)[V.block_m / 2], int block) {
  KeysShared<V>& shared = state.shared;
  find_consumer_of_block(state);
  const int step = state.step;
  const auto at = BlockPlace::of(state.work(), step);
  const Pingpong<V> pingpong{state.consumer};
  tile::Probabilities<V.block_m> p, ds;
  {
    float dp[V.block_m / 2];
    tile::consumer_wait(shared.dout_pipeline, state.dout_at());  // lines 22, 20 (D)
    const auto lse = BlockStatistics<groups_ahead<V>>::load(shared.lse_log2[state.q_at().stage].value);
    if constexpr (!V.softcap) start_dp(state, dp);  // line 23
    if constexpr (publishes_late<V>) {
      if (at.is_third) publish_dq(state, step - 2);  // of the block before, whose own one that is
    }
    pingpong.take();
    exponentiate<V, kind, V.block_m>(state.args, state.template limits<kind>(), block * V.block_m, lse,
                                     scores, p);        // line 24
    if constexpr (rounds_early<V>) start_dv(state, p);  // line 26
    if constexpr (V.softcap) {
      hw::wgmma_wait<0>();  // P and dP together are more than the registers hold
      start_dp(state, dp);  // line 23
    }
    hw::wgmma_wait<rounds_early<V> && !V.softcap ? 1 : 0>();
    differentiate<V, V.block_m>(shared.delta[state.dout_at().stage].value, scores, dp, p, ds);  // line 25
    if constexpr (!rounds_early<V>) start_dv(state, p);                                         // line 26
  }
  if constexpr (passes_ahead_of_store<V>) pingpong.pass();
  store_ds(state, number_of_first_ds + step, ds);
  if constexpr (!passes_ahead_of_store<V>) pingpong.pass();
  start_dk(state, ds);  // line 27
  publish_ds(state, number_of_first_ds + step);
  hw::wgmma_wait<1>();
  release_dout(state);

  float dq[part_accumulators];
  start_dq(state, step, dq);  // line 28 of the block before
  hw::wgmma_wait<1>();
  auto scored = state.q_at();
  ++state.step;
  if (at.has_next) {
    release_q(state, step);
    scored = state.q_at();
    tile::consumer_wait(shared.q_pipeline, scored);  // line 19 of the next block
  }
  start_scores(state, scored.stage, scores);  // line 21 of the next block
  hw::wgmma_wait<1>();
  shared.dq_pipelines.ds.release(ds_at<V>(step));
  if (at.is_second) {
    store_dq(state, step - 1, at.before, dq);  // line 28 of the block before
    if constexpr (!publishes_late<V>) publish_dq(state, step - 1);
  }
  hw::wgmma_wait<0>();  // here, for a product in flight from one turn to the next is what ptxas serialises
}

/// Line 28 of the last block, step `last`, the last product of the tile. Its dS is given back in the next
/// tile.
template <BackwardVariant V>
TANDEM_DEVICE void finish_dq(KeysState<V>& state, int last) {
  if constexpr (publishes_late<V>) {
    if (last > state.work().first_step) publish_dq(state, last - 1);
  }
  float dq[part_accumulators];
  start_dq(state, number_of_first_ds + last, dq);
  hw::wgmma_wait<0>();
  release_keys(state);  // ahead of the rest: the next tile's are loaded meanwhile
  store_dq(state, last, state.work().part_of(last), dq);
  publish_dq(state, last);
}

/// Before the first tile.
template <BackwardVariant V>
TANDEM_DEVICE void begin_pipelined(KeysState<V>& state) {
  Pingpong<V>{state.consumer}.init();
  store_ds(state, 0, tile::Probabilities<V.block_m>{});
  publish_ds(state, 0);
}

/// Lines 18-29 for the queries of all heads of the group.
template <BackwardVariant V>
TANDEM_DEVICE void walk_pipelined(KeysState<V>& state) {
  float scores[V.block_m / 2];
  tile::consumer_wait(state.shared.q_pipeline, state.q_at());  // line 19
  start_scores(state, state.q_at().stage, scores);             // line 21
  hw::wgmma_wait<0>();
  find_consumer(state);
  for_each_visit<V>(state.work(), state.args.group, state.step,
                    [&]<BlockKind kind>(int block) { pipelined_block<V, kind>(state, scores, block); });
  const int last = state.step - 1;
  release_q(state, last);  // whose scores were computed once more
  finish_dq(state, last);
}

}  // namespace tandem::backward
