// A consumer warpgroup: 64 rows of every tile of the block (Algorithm 1, lines 12-25).
#pragma once

#include "forward/eight_bit.h"
#include "forward/epilogue.h"
#include "forward/pingpong.h"
#include "forward/score_bias.h"
#include "forward/score_mask.h"
#include "forward/shared_storage.h"
#include "forward/tree_mask.h"
#include "forward/work.h"
#include "tile/gemm.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Where a consumer stands in the pipelines. It outlives tiles.
template <ForwardVariant V>
struct ConsumerPosition {
  tile::PipelineState<1> q;
  tile::PipelineState<V.kv_stages> k, v;
};

/// What a consumer keeps in registers: of all its tiles, and of the one at work.
template <ForwardVariant V>
struct ConsumerState {
  const ForwardArguments& args;
  ForwardShared<V>& shared;
  Pingpong<V> pingpong;
  int own_row;  ///< of a tile: the thread's upper one
  ConsumerPosition<V> at;

  KeyLoop loop;
  RowLimits limits;
  Softmax<V> softmax;
  float output[V.value_dim / 2];
  EightBit<V> eight_bit;
  ScoreBiasOf<V> bias;
  TreeMaskOf<V> tree;

  /// Whose loop it is.
  TANDEM_DEVICE TileRows rows() const {
    if (!V.decisions.loops_apart) return {0, V.block_m};
    return {pingpong.consumer * tile::warpgroup_rows, tile::warpgroup_rows};
  }
  /// Line 13, but for the output.
  TANDEM_DEVICE void begin(const Work& work) {
    loop = work.loop;
    limits = RowLimits::of<V>(args, lengths_of<V>(args, work.tile), work.first_row + own_row);
    softmax = {};
    eight_bit.begin(args, work, work.first_row + own_row);
    bias.begin(args, work, work.first_row + own_row);
    tree.begin(work);
  }
  TANDEM_DEVICE void clear_output() {
    TANDEM_UNROLL
    for (float& x : output) x = 0.f;
  }
};

/// A block's scores: a float each, or two fp16 a word.
template <ForwardVariant V>
using Scores = std::conditional_t<V.fp16_scores, std::uint32_t[V.block_n / 4], float[V.block_n / 2]>;

/// Makes the registers of a block's scores ready, ahead of a turn.
template <ForwardVariant V>
TANDEM_DEVICE void begin_scores(Scores<V>& scores) {
  if constexpr (!V.fp16_scores) tile::begin_scores<V.operand>(scores);
}

/// Starts the scores of K's next block, which has to be full.
template <ForwardVariant V>
TANDEM_DEVICE void start_scores(ConsumerState<V>& state, Scores<V>& scores) {
  hw::wgmma_fence();
  const auto& q = state.shared.q[state.pingpong.consumer];
  const auto& k = state.shared.k[state.at.k.stage];
  if constexpr (V.fp16_scores) {
    tile::issue_scores_fp16(scores, q, k);
  } else {
    tile::issue_scores<V.operand>(scores, q, k);
  }
  hw::wgmma_commit();
}

/// Of one block.
template <ForwardVariant V>
using BlockProbabilities = tile::Probabilities<V.words(V.block_n)>;

/// Starts the product of 8-bit operands for the columns of its number.
template <int number, ForwardVariant V>
TANDEM_DEVICE void start_columns(ConsumerState<V>& state, const BlockProbabilities<V>& p) {
  constexpr int columns = product_columns<V>, ones = number == 0 ? V.rows_of_ones() : 0;
  constexpr int first = (products<V> - 1 - number) * columns;
  auto& product = state.eight_bit.product;
  tile::start_product<columns + ones>(product, p, state.shared.v[state.at.v.stage], first);
  if constexpr (V.value_terms == 2) {
    tile::start_product<columns + ones, hw::Accumulate::add>(product, p,
                                                             state.shared.second.v[state.at.v.stage], first);
  }
}

/// Starts adding P times V's next block, which has to be full, to the output; of 8-bit operands that product
/// by itself.
template <ForwardVariant V>
TANDEM_DEVICE void start_output(ConsumerState<V>& state, const BlockProbabilities<V>& p) {
  hw::wgmma_fence();
  if constexpr (V.is_8_bit()) {
    start_columns<0>(state, p);
  } else {
    tile::start_output<V.operand, V.instruction_columns()>(state.output, p, state.shared.v[state.at.v.stage]);
  }
  hw::wgmma_commit();
}

/// Adds the products of 8-bit operands from the number on to their columns of the output. A single one is
/// complete; of several the first is in flight, and each begins when the one before is added: for two there
/// are no registers.
template <int number, ForwardVariant V>
TANDEM_DEVICE void finish_columns(ConsumerState<V>& state, const BlockProbabilities<V>& p,
                                  Softmax<V>& softmax) {
  constexpr int registers = product_columns<V> / 2;
  if constexpr (products<V> != 1) hw::wgmma_wait<0>();
  auto& product = state.eight_bit.product;
  if constexpr (V.codes() && number == 0) softmax.add_sums(product[registers], product[registers + 2]);
  softmax.template add<(products<V> - 1 - number) * registers, registers>(state.output, product);
  if constexpr (number + 1 < products<V>) {
    hw::wgmma_fence();
    start_columns<number + 1>(state, p);
    hw::wgmma_commit();
    finish_columns<number + 1>(state, p, softmax);
  }
}

/// Waits for start_output's product, unless finish_output does.
template <ForwardVariant V>
TANDEM_DEVICE void wait_for_output() {
  if constexpr (!V.is_8_bit() || products<V> == 1) hw::wgmma_wait<0>();
}

/// What is left of start_output then: 8-bit operands' product is added to the output here, with the weight
/// that `softmax` has for its block.
template <ForwardVariant V>
TANDEM_DEVICE void finish_output(ConsumerState<V>& state, const BlockProbabilities<V>& p,
                                 Softmax<V>& softmax) {
  if constexpr (V.is_8_bit()) finish_columns<0>(state, p, softmax);
}

/// The scales of 8-bit operands that have come with K's next block. Volatile, so that they are loaded here,
/// beside the product, whoever uses them. All lanes have them before one of them gives the stage back.
template <ForwardVariant V>
TANDEM_DEVICE void take_scales(ConsumerState<V>& state) {
  if constexpr (V.is_8_bit()) {
    const volatile BlockScales& scales = state.shared.scales.of_block[state.at.k.stage];
    state.eight_bit.block.keys = scales.keys;
    state.eight_bit.block.values = scales.values;
    hw::sync_warp();
  }
}

/// Rounds a block's probabilities to the operands' type.
template <ForwardVariant V>
TANDEM_DEVICE void round_probabilities(BlockProbabilities<V>& p, const Scores<V>& scores) {
  if constexpr (V.fp16_scores) {
    tile::gather_codes(p, scores);
  } else if constexpr (V.is_8_bit()) {
    tile::quantise_probabilities<V.codes()>(p, scores);
  } else {
    tile::round_probabilities<V.operand>(p, scores);
  }
}

/// Which lane of a warp gives stages back. Of 8-bit operands the last one: racecheck takes it for the reader
/// of what all lanes read, such as scales (docs/performance.md).
template <ForwardVariant V>
inline constexpr std::uint32_t releasing_lane = V.is_8_bit() ? hw::warp_size - 1 : 0;

/// The tile's last scores are complete: the queries may be overwritten by the next tile's.
template <ForwardVariant V>
TANDEM_DEVICE void release_queries(ConsumerState<V>& state) {
  constexpr std::uint32_t lane = V.lengths == Lengths::varlen ? TileQueue::asking_lane : releasing_lane<V>;
  tile::consumer_release<lane>(state.shared.q_pipeline[state.pingpong.consumer], state.at.q);
  state.at.q.advance();
}
/// The scores at a position of the loop are complete.
template <ForwardVariant V>
TANDEM_DEVICE void release_queries_after(ConsumerState<V>& state, int position) {
  if (position + 1 == state.loop.count) release_queries(state);
}

/// Lines 24 and 25, from the statistics of the tile.
template <Stores when = Stores::alone, ForwardVariant V>
TANDEM_DEVICE void store_own_rows(ConsumerState<V>& state, const Work& work, RowStatistics statistics) {
  store_tile<V, when>(state.args, state.shared, work, state.own_row, statistics, state.output);
}

/// Skips a block of K that none of the consumer's rows sees: it costs a turn, and goes back when it
/// has come, so that all consumers stay in step.
template <ForwardVariant V>
TANDEM_DEVICE void skip_keys(ConsumerState<V>& state) {
  tile::consumer_wait(state.shared.k_pipeline, state.at.k);
  state.pingpong.take();
  state.pingpong.pass();
  hw::sync_warp();  // as in kernel.h
  tile::consumer_release<releasing_lane<V>>(state.shared.k_pipeline, state.at.k);
  state.at.k.advance();
}
/// The same of V.
template <ForwardVariant V>
TANDEM_DEVICE void skip_values(ConsumerState<V>& state) {
  tile::consumer_wait(state.shared.v_pipeline, state.at.v);
  hw::sync_warp();
  tile::consumer_release<releasing_lane<V>>(state.shared.v_pipeline, state.at.v);
  state.at.v.advance();
}
/// So many blocks of both.
template <ForwardVariant V>
TANDEM_DEVICE void skip_blocks(ConsumerState<V>& state, int count) {
  TANDEM_DONT_UNROLL
  for (int i = 0; i < count; ++i) {
    skip_keys(state);
    skip_values(state);
  }
}

using core::BlockKind;

template <ForwardVariant V>
inline constexpr tile::Maximum maximum_of =
    V.decisions.maxima_as_integers ? tile::Maximum::bits_in_threes : tile::Maximum::float_;

/// From raw scores to what the cap takes, or, where there is none, to exponents of two, of row i.
template <ForwardVariant V>
TANDEM_DEVICE float score_unit(const ConsumerState<V>& state, float of_scores, int i) {
  if constexpr (V.is_8_bit()) of_scores *= state.eight_bit.row_scale[i] * state.eight_bit.block.keys;
  return of_scores;
}

/// Cap, slopes, mask and row maxima of one block of scores (line 18), at a position of the loop. Whether
/// references that stay have to be raised.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE bool take_maximum(ConsumerState<V>& state, Scores<V>& scores, int position) {
  if constexpr (V.softcap) {
    const float to_cap[2] = {score_unit(state, state.args.score_to_cap, 0),
                             score_unit(state, state.args.score_to_cap, 1)};
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j) {
      const float score = V.integer_scores() ? scores[j] - tile::base_of_sums : scores[j];
      scores[j] = hw::tanh(score * to_cap[tile::row_of_accumulator(j)]);
    }
  }
  // Full blocks without slopes don't ask, since a list would be read for it.
  const bool asks =
      !V.block_sparse || kind == BlockKind::masked || (V.knows_slopes() && state.args.slopes.data != nullptr);
  const int first_key = asks ? key_block<V>(state.args, state.loop, position) * V.block_n : 0;
  if constexpr (V.fp16_scores) {  // without slopes and trees
    if constexpr (kind == BlockKind::masked) mask_fp16_scores<V>(scores, state.limits, first_key);
    state.softmax.update_row_max(scores);
    return false;
  } else {
    state.bias.add(state.args, scores, first_key);
    if constexpr (kind == BlockKind::masked) {
      mask_scores<V>(scores, state.limits, first_key);
      state.tree.hide(state.args, scores, state.own_row, first_key);
    }
    constexpr bool often_negative = kind == BlockKind::masked && (V.is_8_bit() || V.references_stay());
    constexpr auto how = often_negative ? tile::Maximum::float_ : maximum_of<V>;
    if constexpr (V.references_stay()) {
      return state.softmax.template exceeds<how>(scores, state.args.scale_log2);
    } else {
      state.softmax.template update_row_max<how>(scores);
      return false;
    }
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
TANDEM_DEVICE void exponentiate(ConsumerState<V>& state, Scores<V>& scores) {
  constexpr bool masked = kind == BlockKind::masked;
  if constexpr (V.is_8_bit()) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i)
      state.softmax.unit[i] = V.softcap ? state.args.scale_log2 : score_unit(state, state.args.scale_log2, i);
    state.softmax.template exponentiate<masked>(scores, state.output, state.eight_bit.block.values);
  } else {
    state.softmax.exponentiate(scores, state.args.scale_log2);
  }
}

/// Lines 18 and 19.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE OutputRescale softmax_block(ConsumerState<V>& state, Scores<V>& scores, int position) {
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
