// A consumer warpgroup of a tile of keys: 64 of them (Algorithm 3, lines 14-29).
#pragma once

#include "backward/gradients.h"
#include "backward/keys_shared.h"
#include "backward/pingpong.h"
#include "backward/work.h"

namespace tandem::backward {

/// What a consumer keeps in registers, and where it stands in the pipelines.
template <BackwardVariant V>
struct KeysState {
  const BackwardArguments& args;
  KeysShared<V>& shared;
  int consumer;
  int step;  ///< of the loop: blocks that are behind, those of earlier tiles too
  float dk[V.head_dim / 2], dv[V.head_dim / 2];

  TANDEM_DEVICE auto q_at() const { return tile::PipelineState<V.q_stages>::of(step); }
  TANDEM_DEVICE auto dout_at() const { return tile::PipelineState<V.stages>::of(step); }
  // Not kept, for registers are few.
  TANDEM_DEVICE const KeyWork& work() const { return shared.dq_pipelines.taken.work; }
  TANDEM_DEVICE auto keys_at() const { return tile::PipelineState<1>::of(work().number); }
  /// The thread's upper key; the lower one is 8 further down.
  TANDEM_DEVICE int own_key() const {
    const int thread = static_cast<int>(hw::thread_index_anew() % hw::warpgroup_size);
    return work().first_key + tile::warpgroup_rows * consumer + tile::upper_row(thread);
  }
  /// Of a block that needs the mask.
  template <BlockKind kind>
  TANDEM_DEVICE KeyLimits limits() const {
    if constexpr (kind != BlockKind::masked) return {};
    return KeyLimits::of(extent_of<V>(args, work().sequence), own_key());
  }
};

/// Where the dS that is shared as number `number` lies, from 0 on.
template <BackwardVariant V>
TANDEM_DEVICE tile::PipelineState<DqTiles<V>::stages> ds_at(int number) {
  return tile::PipelineState<DqTiles<V>::stages>::of(number);
}

/// Finds out once more which consumer this is. So ptxas makes anew what it makes of it, descriptors above
/// all, where it would keep it for all tiles and spill.
template <BackwardVariant V>
TANDEM_DEVICE void find_consumer(KeysState<V>& state) {
  state.consumer = static_cast<int>(hw::warpgroup_index()) - 1;
}
/// The same in each block, where registers are fewest. Not by a shuffle, which would queue for shared memory
/// behind products.
template <BackwardVariant V>
TANDEM_DEVICE void find_consumer_of_block(KeysState<V>& state) {
  if constexpr (V.head_dim == 128) state.consumer = static_cast<int>(hw::warpgroup_index_anew()) - 1;
}

/// Line 21, transposed: starts S^T = K Q^T of a block of queries, which has to be full.
template <BackwardVariant V>
TANDEM_DEVICE void start_scores(KeysState<V>& state, int stage, float (&scores)[V.block_m / 2]) {
  start_score_product<V.operand>(scores, state.shared.k[state.consumer], state.shared.q[stage]);
}

/// Line 23, transposed: starts dP^T = V dO^T.
template <BackwardVariant V>
TANDEM_DEVICE void start_dp(KeysState<V>& state, float (&dp)[V.block_m / 2]) {
  start_score_product<V.operand>(dp, state.shared.v[state.consumer],
                                 state.shared.dout[state.dout_at().stage]);
}

/// Line 26: starts dV += P^T dO.
template <BackwardVariant V>
TANDEM_DEVICE void start_dv(KeysState<V>& state, const tile::Probabilities<V.block_m>& p) {
  start_gradient_product<V.operand>(state.dv, p, state.shared.dout[state.dout_at().stage]);
}

/// Line 27: starts dK += dS^T Q.
template <BackwardVariant V>
TANDEM_DEVICE void start_dk(KeysState<V>& state, const tile::Probabilities<V.block_m>& ds) {
  start_gradient_product<V.operand>(state.dk, ds, state.shared.q[state.q_at().stage]);
}

/// The warpgroup's dS for all consumers' products, once publish_ds() has followed.
template <BackwardVariant V>
TANDEM_DEVICE void store_ds(KeysState<V>& state, int number, const tile::Probabilities<V.block_m>& ds) {
  // Not warp_index(): its shuffle would queue for shared memory behind the products.
  const int first =
      tile::warpgroup_rows * state.consumer + 16 * static_cast<int>(hw::thread_index() / hw::warp_size % 4);
  const auto at = ds_at<V>(number);
  state.shared.dq_pipelines.ds.wait_emptied(at);
  store_fragments(state.shared.dq.ds[at.stage], first, ds);
}
template <BackwardVariant V>
TANDEM_DEVICE void publish_ds(KeysState<V>& state, int number) {
  state.shared.dq_pipelines.ds.fill(ds_at<V>(number));
}

/// Line 28, the product: starts the consumer's part of dQ = dS K, over the keys of all consumers.
template <BackwardVariant V>
TANDEM_DEVICE void start_dq(KeysState<V>& state, int number, float (&dq)[part_accumulators]) {
  constexpr int row_blocks = V.block_m / part_rows, steps_of_tile = tile::warpgroup_rows / tile::k_step;
  const int row_block = state.consumer % row_blocks, panel = state.consumer / row_blocks;
  const auto at = ds_at<V>(number);
  state.shared.dq_pipelines.ds.wait_filled(at);
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

/// The part of the last tile becomes dQ: the sums of the others, if there are any, come to it, and it is
/// rounded. All have one place: all threads have read the sums before one of them stores.
template <BackwardVariant V>
TANDEM_DEVICE void store_rounded_dq(KeysState<V>& state, int number, bool alone,
                                    const float (&dq)[part_accumulators]) {
  const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size);
  auto& part = state.shared.dq.part[state.consumer];
  hw::barrier_wait(state.shared.dq_pipelines.sums[state.consumer], tile::PipelineState<1>::of(number).parity);
  tile::Probabilities<part_columns> rounded;
  TANDEM_UNROLL
  for (int quad = 0; quad < part_accumulators / 4; ++quad) {
    AccumulatorQuad sum{};
    if (!alone) sum = *reinterpret_cast<const AccumulatorQuad*>(part.value + place_in_part(thread, quad));
    TANDEM_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const int j = 4 * quad + i;
      rounded.fragment[quad / 2][quad % 2 * 2 + i / 2] =
          hw::pack<V.operand>((dq[j] + sum.value[i]) * state.args.scale,  // the products lack it
                              (dq[j + 1] + sum.value[i + 1]) * state.args.scale);
    }
  }
  hw::sync_named(static_cast<std::uint32_t>(NamedBarrier::sums_of_first_consumer) +
                     static_cast<std::uint32_t>(state.consumer),
                 hw::warpgroup_size);
  store_fragments(part.rounded(), 16 * (thread / static_cast<int>(hw::warp_size)), rounded);
}

/// Line 28, the rest: the part of dQ to shared memory, for the writer, once publish_dq() has followed.
/// `number`: parts before it.
template <BackwardVariant V>
TANDEM_DEVICE void store_dq(KeysState<V>& state, int number, KeyWork::Part what,
                            const float (&dq)[part_accumulators]) {
  float* part = state.shared.dq.part[state.consumer].value;
  const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size);
  state.shared.dq_pipelines.part[state.consumer].wait_emptied(tile::PipelineState<1>::of(number));
  if (what.is_last) return store_rounded_dq(state, number, what.is_first, dq);
  TANDEM_UNROLL
  for (int quad = 0; quad < part_accumulators / 4; ++quad)
    *reinterpret_cast<AccumulatorQuad*>(part + place_in_part(thread, quad)) = AccumulatorQuad::of(dq, quad);
}
template <BackwardVariant V>
TANDEM_DEVICE void publish_dq(KeysState<V>& state, int number) {
  state.shared.dq_pipelines.part[state.consumer].fill(tile::PipelineState<1>::of(number));
}

/// The tile's keys and values are done with.
template <BackwardVariant V>
TANDEM_DEVICE void release_keys(KeysState<V>& state) {
  tile::consumer_release(state.shared.k_pipeline, state.keys_at());
  tile::consumer_release(state.shared.v_pipeline, state.keys_at());
}

/// The block of dO is done with, its product too.
template <BackwardVariant V>
TANDEM_DEVICE void release_dout(KeysState<V>& state) {
  release_read_stage(state.shared.dout_pipeline, state.dout_at());
}
/// The same of Q, of step `step`.
template <BackwardVariant V>
TANDEM_DEVICE void release_q(KeysState<V>& state, int step) {
  release_read_stage(state.shared.q_pipeline, tile::PipelineState<V.q_stages>::of(step));
}

}  // namespace tandem::backward
