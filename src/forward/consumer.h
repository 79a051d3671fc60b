// A consumer warpgroup: 64 queries of every tile of the block (Algorithm 1, lines 12-25).
#pragma once

#include "forward/epilogue.h"
#include "forward/score_mask.h"
#include "forward/shared_storage.h"
#include "forward/turn.h"
#include "forward/work.h"
#include "tile/gemm.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Where a consumer stands in the rings. It outlives tiles.
template <ForwardVariant V>
struct ConsumerPosition {
  tile::RingPosition<1> q;
  tile::RingPosition<V.kv_stages> k, v;
};

/// What a consumer keeps in registers for one tile.
template <ForwardVariant V>
struct ConsumerState {
  const ForwardArguments& args;
  ForwardShared<V>& shared;
  ConsumerPosition<V>& at;
  Turn<V> turn;
  int last_block;  ///< of the tile
  RowLimits limits;
  tile::OnlineSoftmax softmax;
  float output[V.head_dim / 2];
};

/// Starts the scores of K's next block, which has to be full.
template <ForwardVariant V>
TANDEM_DEVICE void start_scores(ConsumerState<V>& state, float (&scores)[V.block_n / 2]) {
  hw::wgmma_fence();
  tile::start_scores<V.operand>(scores, state.shared.q[state.turn.consumer], state.shared.k[state.at.k.slot]);
  hw::wgmma_commit();
}

/// Starts adding P times V's next block, which has to be full, to the output.
template <ForwardVariant V>
TANDEM_DEVICE void start_output(ConsumerState<V>& state, const tile::Probabilities<V.block_n>& p) {
  hw::wgmma_fence();
  tile::start_output<V.operand>(state.output, p, state.shared.v[state.at.v.slot]);
  hw::wgmma_commit();
}

/// The scores of `block` are complete. After the tile's last, the queries may be overwritten by the next
/// tile's.
template <ForwardVariant V>
TANDEM_DEVICE void release_queries_after(ConsumerState<V>& state, int block) {
  if (block != state.last_block) return;
  tile::release_slot(state.shared.q_ring[state.turn.consumer], state.at.q);
  state.at.q.advance();
}

/// Blocks whose scores all count, and blocks that need the mask: the two kinds of a peeled loop.
enum class BlockKind { full, masked };

/// Cap, mask and softmax of one block of scores (lines 18, 19).
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE tile::Rescale softmax_block(ConsumerState<V>& state, float (&scores)[V.block_n / 2],
                                          int block) {
  if constexpr (V.softcap) {
    TANDEM_UNROLL
    for (float& score : scores) score = hw::tanh(score * state.args.score_to_cap);
  }
  if constexpr (kind == BlockKind::masked) mask_scores<V>(scores, state.limits, block * V.block_n);
  return state.softmax.template update<kind == BlockKind::masked>(scores, state.args.scale_log2);
}

/// Brings the output to the reference of the probabilities that are added next. No product may be in flight.
template <ForwardVariant V>
TANDEM_DEVICE void rescale_output(ConsumerState<V>& state, const tile::Rescale& rescale) {
  if (rescale.needed) tile::scale_rows(state.output, rescale.factor);
}

}  // namespace tandem::forward
