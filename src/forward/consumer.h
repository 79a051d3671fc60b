// A consumer warpgroup: 64 rows of every tile of the block (Algorithm 1, lines 12-25).
#pragma once

#include "forward/eight_bit.h"
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

/// What a consumer keeps in registers: of all its tiles, and of the one at work.
template <ForwardVariant V>
struct ConsumerState {
  const ForwardArguments& args;
  ForwardShared<V>& shared;
  Turn<V> turn;
  int own_row;  ///< of a tile: the thread's upper one
  ConsumerPosition<V> at;

  core::BlockWalk walk;
  RowLimits limits;
  Softmax<V> softmax;
  float output[V.head_dim / 2];
  EightBit<V> eight_bit;

  /// Whose walk it is.
  TANDEM_DEVICE TileRows rows() const {
    if (!walks_apart<V>) return {0, V.block_m};
    return {turn.consumer * tile::warpgroup_rows, tile::warpgroup_rows};
  }
  /// Line 13, but for the output.
  TANDEM_DEVICE void begin(const Work& work) {
    walk = work.walk;
    limits = RowLimits::of<V>(args, sequence_of<V>(args, work.tile.batch), work.first_row + own_row);
    softmax = {};
    eight_bit.begin(args, work, work.first_row + own_row);
  }
  TANDEM_DEVICE void clear_output() {
    TANDEM_UNROLL
    for (float& x : output) x = 0.f;
  }
};

/// Starts the scores of K's next block, which has to be full.
template <ForwardVariant V>
TANDEM_DEVICE void start_scores(ConsumerState<V>& state, float (&scores)[V.block_n / 2]) {
  hw::wgmma_fence();
  tile::start_scores<V.operand>(scores, state.shared.q[state.turn.consumer], state.shared.k[state.at.k.slot]);
  hw::wgmma_commit();
}

/// Of one block.
template <ForwardVariant V>
using BlockProbabilities = tile::Probabilities<V.words(V.block_n)>;

/// Starts adding P times V's next block, which has to be full, to the output; of 8-bit operands that product
/// by itself.
template <ForwardVariant V>
TANDEM_DEVICE void start_output(ConsumerState<V>& state, const BlockProbabilities<V>& p) {
  hw::wgmma_fence();
  if constexpr (V.is_8_bit()) {
    tile::start_product<product_columns<V>>(state.eight_bit.product, p, state.shared.v[state.at.v.slot], 0);
  } else {
    tile::start_output<V.operand>(state.output, p, state.shared.v[state.at.v.slot]);
  }
  hw::wgmma_commit();
}

/// Adds the product of 8-bit operands, which is complete, to columns `first` ... of the output, and those of
/// the columns behind it, one after another.
template <int first, ForwardVariant V>
TANDEM_DEVICE void finish_columns(ConsumerState<V>& state, const BlockProbabilities<V>& p,
                                  const Softmax<V>& softmax) {
  constexpr int columns = product_columns<V>, next = first + columns;
  auto& product = state.eight_bit.product;
  softmax.template add<first / 2>(state.output, product);
  if constexpr (next < V.head_dim) {
    hw::wgmma_fence();
    tile::start_product<columns>(product, p, state.shared.v[state.at.v.slot], next);
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    finish_columns<next>(state, p, softmax);
  }
}

/// What is left of start_output once its product is complete: 8-bit operands' is added to the output here,
/// with the weight that `softmax` has for its block.
template <ForwardVariant V>
TANDEM_DEVICE void finish_output(ConsumerState<V>& state, const BlockProbabilities<V>& p,
                                 const Softmax<V>& softmax) {
  if constexpr (V.is_8_bit()) finish_columns<0>(state, p, softmax);
}

/// Asks for the scales of 8-bit operands at a position of the walk, ahead of their use.
template <ForwardVariant V>
TANDEM_DEVICE void take_scales(ConsumerState<V>& state, int position) {
  if constexpr (V.is_8_bit()) state.eight_bit.take_scales(state.args, state.walk.block(position) * V.block_n);
}

/// Rounds a block's probabilities to the operands' type.
template <ForwardVariant V>
TANDEM_DEVICE void round_probabilities(BlockProbabilities<V>& p, const float (&scores)[V.block_n / 2]) {
  if constexpr (V.is_8_bit()) {
    tile::quantise_probabilities(p, scores);
  } else {
    tile::round_probabilities<V.operand>(p, scores);
  }
}

/// The tile's last scores are complete: the queries may be overwritten by the next tile's.
template <ForwardVariant V>
TANDEM_DEVICE void release_queries(ConsumerState<V>& state) {
  tile::release_slot(state.shared.q_ring[state.turn.consumer], state.at.q);
  state.at.q.advance();
}
/// The scores at a position of the walk are complete.
template <ForwardVariant V>
TANDEM_DEVICE void release_queries_after(ConsumerState<V>& state, int position) {
  if (position + 1 == state.walk.count) release_queries(state);
}

/// Lines 24 and 25, from the statistics of the tile.
template <ForwardVariant V>
TANDEM_DEVICE void store_tile(ConsumerState<V>& state, const Work& work, Softmax<V>& softmax) {
  store_tile<V>(state.args, state.shared, work, work.first_row + state.own_row, softmax, state.output);
}

/// Lets a block of K pass by that none of the consumer's rows sees: it costs a turn, and goes back when it
/// has come, so that all consumers stay in step.
template <ForwardVariant V>
TANDEM_DEVICE void pass_by_keys(ConsumerState<V>& state) {
  tile::wait_full(state.shared.k_ring, state.at.k);
  state.turn.take();
  state.turn.pass();
  hw::sync_warp();  // as in kernel.h
  tile::release_slot(state.shared.k_ring, state.at.k);
  state.at.k.advance();
}
/// The same of V.
template <ForwardVariant V>
TANDEM_DEVICE void pass_by_values(ConsumerState<V>& state) {
  tile::wait_full(state.shared.v_ring, state.at.v);
  hw::sync_warp();
  tile::release_slot(state.shared.v_ring, state.at.v);
  state.at.v.advance();
}
/// So many blocks of both.
template <ForwardVariant V>
TANDEM_DEVICE void pass_by(ConsumerState<V>& state, int count) {
  TANDEM_DONT_UNROLL
  for (int i = 0; i < count; ++i) {
    pass_by_keys(state);
    pass_by_values(state);
  }
}

/// Blocks whose scores all count, and blocks that need the mask: the two kinds of a peeled loop.
enum class BlockKind { full, masked };

template <ForwardVariant V>
inline constexpr tile::Maximum maximum_of =
    maxima_as_integers<V> ? tile::Maximum::bits_in_threes : tile::Maximum::float_;

/// From raw scores to what the cap takes, or, where there is none, to exponents of two, of row i.
template <ForwardVariant V>
TANDEM_DEVICE float score_unit(const ConsumerState<V>& state, float of_scores, int i) {
  if constexpr (V.is_8_bit()) of_scores *= state.eight_bit.row_scale[i] * state.eight_bit.key_scale;
  return of_scores;
}

/// Cap, mask and row maxima of one block of scores (line 18), at a position of the walk.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void take_maximum(ConsumerState<V>& state, float (&scores)[V.block_n / 2], int position) {
  if constexpr (V.softcap) {
    const float to_cap[2] = {score_unit(state, state.args.score_to_cap, 0),
                             score_unit(state, state.args.score_to_cap, 1)};
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j)
      scores[j] = hw::tanh(scores[j] * to_cap[tile::row_of_accumulator(j)]);
  }
  if constexpr (kind == BlockKind::masked) {
    mask_scores<V>(scores, state.limits, state.walk.block(position) * V.block_n);
  }
  if constexpr (V.is_8_bit()) {
    state.softmax.take_maximum(scores);
  } else {
    state.softmax.template take_maximum<maximum_of<V>>(scores);
  }
}

/// How the output has to be rescaled, and whether: the same in the whole warp.
struct OutputRescale {
  tile::Rescale by;
  bool needed;
};

/// Moves the sums to the maxima that were taken last (line 19). 8-bit operands' blocks have weights instead.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE tile::Rescale rebase(ConsumerState<V>& state) {
  if constexpr (V.is_8_bit())
    return {{1.f, 1.f}};
  else
    return state.softmax.template rebase<kind == BlockKind::masked>(state.args.scale_log2);
}

/// Probabilities and row sums of the same block (line 19 too).
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void exponentiate(ConsumerState<V>& state, float (&scores)[V.block_n / 2]) {
  constexpr bool masked = kind == BlockKind::masked;
  if constexpr (V.is_8_bit()) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i)
      state.softmax.unit[i] = V.softcap ? state.args.scale_log2 : score_unit(state, state.args.scale_log2, i);
    state.softmax.template exponentiate<masked>(scores, state.output, state.eight_bit.value_scale);
  } else {
    state.softmax.exponentiate(scores, state.args.scale_log2);
  }
}

/// Lines 18 and 19.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE OutputRescale softmax_block(ConsumerState<V>& state, float (&scores)[V.block_n / 2],
                                          int position) {
  take_maximum<V, kind>(state, scores, position);
  const tile::Rescale by = rebase<V, kind>(state);
  const OutputRescale rescale{
      by, !V.is_8_bit() && by.needed()};  // asked before the exponentials, so that nobody waits for it
  exponentiate<V, kind>(state, scores);
  return rescale;
}

/// Brings the output to the reference of the probabilities that are added next. No product may be in flight.
template <ForwardVariant V>
TANDEM_DEVICE void rescale_output(ConsumerState<V>& state, const OutputRescale& rescale) {
  if (rescale.needed) tile::scale_rows(state.output, rescale.by.factor);
}

}  // namespace tandem::forward
