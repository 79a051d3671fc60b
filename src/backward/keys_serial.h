// Algorithm 3's main loop as printed: each product is waited for where the paper does. Only different
// warpgroups, the producer and the dQ writers overlap.
#pragma once

#include "backward/keys_consumer.h"

namespace tandem::backward {

/// Lines 19-28 for one block of queries.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void serial_block(KeysState<V>& state, int block) {
  KeysShared<V>& shared = state.shared;
  find_consumer_of_block(state);
  float scores[V.block_m / 2], dp[V.block_m / 2];
  tile::Probabilities<V.block_m> p, ds;

  tile::consumer_wait(shared.q_pipeline, state.q_at());        // lines 19, 20 (L)
  start_scores(state, state.q_at().stage, scores);             // line 21
  tile::consumer_wait(shared.dout_pipeline, state.dout_at());  // lines 22, 20 (D)
  start_dp(state, dp);                                         // line 23
  hw::wgmma_wait<1>();
  exponentiate<V, kind, V.block_m>(state.args, state.template limits<kind>(), block * V.block_m,
                                   BlockStatistics<0>::load(shared.lse_log2[state.q_at().stage].value),
                                   scores, p);  // line 24
  hw::wgmma_wait<0>();
  differentiate<V, V.block_m>(shared.delta[state.dout_at().stage].value, scores, dp, p, ds);  // line 25
  store_ds(state, state.step, ds);
  publish_ds(state, state.step);
  start_dv(state, p);   // line 26
  start_dk(state, ds);  // line 27
  hw::wgmma_wait<0>();
  release_dout(state);
  release_q(state, state.step);

  float dq[part_accumulators];
  start_dq(state, state.step, dq);  // line 28
  hw::wgmma_wait<0>();
  shared.dq_pipelines.ds.release(ds_at<V>(state.step));
  store_dq(state, state.step, state.work().part_of(state.step), dq);  // line 28
  publish_dq(state, state.step);
  ++state.step;
}

/// Lines 18-29 for the queries of all heads of the group.
template <BackwardVariant V>
TANDEM_DEVICE void walk_serial(KeysState<V>& state) {
  find_consumer(state);
  for_each_visit<V>(state.work(), state.args.group, state.step,
                    [&]<BlockKind kind>(int block) { serial_block<V, kind>(state, block); });
  release_keys(state);
}

}  // namespace tandem::backward
