// A consumer warpgroup of a tile of keys: 64 of them (Algorithm 3, lines 14-29).
#pragma once

#include "backward/gradients.h"
#include "backward/keys_shared.h"
#include "backward/work.h"

namespace tandem::backward {

/// What a consumer keeps in registers, and where it stands in the pipelines.
template <BackwardVariant V>
struct KeysState {
  const BackwardArguments& args;
  KeysShared<V>& shared;
  int consumer;
  tile::PipelineState<1> keys_at;
  int own_key;  ///< the thread's upper one; the lower one is 8 further down
  KeyLimits kept_limits;
  int step;        ///< of the loop: blocks that are behind, those of earlier tiles too
  int first_step;  ///< of this tile
  float dk[V.head_dim / 2], dv[V.head_dim / 2];

  TANDEM_DEVICE auto q_at() const { return tile::PipelineState<V.q_stages>::of(step); }
  TANDEM_DEVICE auto dout_at() const { return tile::PipelineState<V.stages>::of(step); }
  /// Of a block that needs the mask. Not kept where registers are few.
  template <BlockKind kind>
  TANDEM_DEVICE KeyLimits limits() const {
    if constexpr (kind != BlockKind::masked) return {};
    return V.is_persistent() ? KeyLimits::of(args.extent, own_key) : kept_limits;
  }
};

/// Where the dS that is shared as number `number` lies, from 0 on.
template <BackwardVariant V>
TANDEM_DEVICE tile::PipelineState<DqTiles<V>::stages> ds_at(int number) {
  return tile::PipelineState<DqTiles<V>::stages>::of(number);
}

template <BackwardVariant V>
inline constexpr bool adds_dq = V.dq_sums == DqSums::added;

/// Finds out once more which consumer this is. So ptxas makes anew what it makes of it, descriptors above
/// all, where it would keep it for all tiles and spill.
template <BackwardVariant V>
TANDEM_DEVICE void find_consumer(KeysState<V>& state) {
  if constexpr (V.is_persistent() || (V.softcap && adds_dq<V>))
    state.consumer = static_cast<int>(hw::warpgroup_index()) - 1;
}

/// Line 21, transposed: starts S^T = K Q^T of a block of queries, which has to be full.
template <BackwardVariant V>
TANDEM_DEVICE void start_scores(KeysState<V>& state, int stage, float (&scores)[V.block_m / 2]) {
  hw::wgmma_fence();
  tile::issue_scores<V.operand>(scores, state.shared.k[state.consumer], state.shared.q[stage]);
  hw::wgmma_commit();
}

/// Line 23, transposed: starts dP^T = V dO^T.
template <BackwardVariant V>
TANDEM_DEVICE void start_dp(KeysState<V>& state, float (&dp)[V.block_m / 2]) {
  hw::wgmma_fence();
  tile::issue_scores<V.operand>(dp, state.shared.v[state.consumer], state.shared.dout[state.dout_at().stage]);
  hw::wgmma_commit();
}

/// Line 26: starts dV += P^T dO.
template <BackwardVariant V>
TANDEM_DEVICE void start_dv(KeysState<V>& state, const tile::Probabilities<V.block_m>& p) {
  hw::wgmma_fence();
  tile::start_output<V.operand>(state.dv, p, state.shared.dout[state.dout_at().stage]);
  hw::wgmma_commit();
}

/// Line 27: starts dK += dS^T Q.
template <BackwardVariant V>
TANDEM_DEVICE void start_dk(KeysState<V>& state, const tile::Probabilities<V.block_m>& ds) {
  hw::wgmma_fence();
  tile::start_output<V.operand>(state.dk, ds, state.shared.q[state.q_at().stage]);
  hw::wgmma_commit();
}

/// The warpgroup's dS for all consumers' products, once publish_ds() has followed.
template <BackwardVariant V>
TANDEM_DEVICE void store_ds(KeysState<V>& state, int number, const tile::Probabilities<V.block_m>& ds) {
  auto& dq = state.shared.dq;
  // Not warp_index(): its shuffle would queue for shared memory behind the products.
  const int first =
      tile::warpgroup_rows * state.consumer + 16 * static_cast<int>(hw::thread_index() / hw::warp_size % 4);
  const auto at = ds_at<V>(number);
  dq.ds_pipeline.wait_emptied(at);
  store_fragments(dq.ds[at.stage], first, ds);
}
template <BackwardVariant V>
TANDEM_DEVICE void publish_ds(KeysState<V>& state, int number) {
  state.shared.dq.ds_pipeline.fill(ds_at<V>(number));
}

/// Line 28, the product: starts the consumer's part of dQ = dS K, over the keys of all consumers.
template <BackwardVariant V>
TANDEM_DEVICE void start_dq(KeysState<V>& state, int number, float (&dq)[part_accumulators]) {
  constexpr int row_blocks = V.block_m / part_rows, steps_of_tile = tile::warpgroup_rows / tile::k_step;
  const int row_block = state.consumer % row_blocks, panel = state.consumer / row_blocks;
  const auto at = ds_at<V>(number);
  state.shared.dq.ds_pipeline.wait_filled(at);
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int step = 0; step < V.block_n / tile::k_step; ++step) {
    hw::wgmma_ss<V.operand, part_columns, hw::Major::mn, hw::Major::mn>(
        dq, state.shared.dq.ds[at.stage].mn_major(step, row_block),
        state.shared.k[step / steps_of_tile].mn_major(step % steps_of_tile, panel),
        step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
  hw::wgmma_commit();
}

/// Line 28, the rest: the part of dQ to shared memory, for the writer, once publish_dq() has followed.
/// `number`: parts before it.
template <BackwardVariant V>
TANDEM_DEVICE void store_dq(KeysState<V>& state, int number, const float (&dq)[part_accumulators]) {
  auto& pipeline = state.shared.dq.part_pipeline[state.consumer];
  float* part = state.shared.dq.part[state.consumer].value;
  const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size);
  const auto at = tile::PipelineState<1>::of(number);
  pipeline.wait_emptied(at);
  TANDEM_UNROLL
  for (int quad = 0; quad < part_accumulators / 4; ++quad)
    *reinterpret_cast<AccumulatorQuad*>(part + place_in_part(thread, quad)) = AccumulatorQuad::of(dq, quad);
}
template <BackwardVariant V>
TANDEM_DEVICE void publish_dq(KeysState<V>& state, int number) {
  state.shared.dq.part_pipeline[state.consumer].fill(tile::PipelineState<1>::of(number));
}

/// The tile's keys and values are done with.
template <BackwardVariant V>
TANDEM_DEVICE void release_keys(KeysState<V>& state) {
  tile::consumer_release(state.shared.k_pipeline, state.keys_at);
  tile::consumer_release(state.shared.v_pipeline, state.keys_at);
}

/// The block of dO is done with, its product too.
template <BackwardVariant V>
TANDEM_DEVICE void release_dout(KeysState<V>& state) {
  hw::sync_warp();  // lanes have read statistics that came with it
  tile::consumer_release(state.shared.dout_pipeline, state.dout_at());
}
/// The same of Q.
template <BackwardVariant V>
TANDEM_DEVICE void release_q(KeysState<V>& state) {
  hw::sync_warp();
  tile::consumer_release(state.shared.q_pipeline, state.q_at());
}

}  // namespace tandem::backward
