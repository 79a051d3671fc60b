// Consumers of the widest heads: two warpgroups with the same 64 rows, since the output of one would not hold
// all columns. Of each block of keys both compute the scores of one half and multiply all probabilities with
// one half of the values' columns. Maxima, sums and probabilities go through shared memory.
#pragma once

#include "forward/consumer.h"
#include "forward/pingpong.h"

namespace tandem::forward {

/// What one of the two has of a block: half the keys in its scores, half the columns in its output.
template <ForwardVariant V>
inline constexpr ForwardVariant half_of = [] {
  ForwardVariant half = V;
  half.block_n /= 2, half.value_dim /= 2;
  return half;
}();

template <ForwardVariant V>
struct WideConsumer {
  static constexpr ForwardVariant half = half_of<V>;
  static_assert(V.kv_stages == V.block_parts(), "a block's first part is always the first stage");

  const ForwardArguments& args;
  ForwardShared<V>& shared;
  int number;   ///< 0 or 1
  int own_row;  ///< of a tile: the thread's upper one
  std::uint32_t q_parity, k_parity, v_parity;

  KeyLoop loop;
  RowLimits limits;
  tile::OnlineSoftmax softmax;
  float output[half.value_dim / 2];

  TANDEM_DEVICE void begin(const Work& work) {
    loop = work.loop;
    limits = RowLimits::of<V>(args, lengths_of<V>(args, work.tile), work.first_row + own_row);
    softmax = {};
    TANDEM_UNROLL
    for (float& x : output) x = 0.f;
  }
  TANDEM_DEVICE int first_column() const { return half.value_dim * number; }
  TANDEM_DEVICE int first_tile_row() const { return 16 * (static_cast<int>(hw::warp_index()) % 4); }

  /// Both consumers.
  TANDEM_DEVICE static void sync() {
    hw::sync_named(static_cast<std::uint32_t>(NamedBarrier::consumers_of_same_rows), 2 * hw::warpgroup_size);
  }
  TANDEM_DEVICE void give_queries_back() {
    tile::consumer_release(shared.q_pipeline[0], tile::PipelineState<1>{0, q_parity});
    q_parity ^= 1u;
  }
};

/// Gives a part back once its products are complete, the next part's being in flight.
template <int part, int stages>
TANDEM_DEVICE void release_part(tile::Pipeline<stages>& pipeline) {
  hw::wgmma_wait<part + 1 < stages ? 1 : 0>();
  tile::consumer_release(pipeline, tile::PipelineState<stages>{part, 0});
}

/// For each part of a block, in order: waits for it, starts its products, and gives the part before back.
template <int part = 0, int stages, typename Start>
TANDEM_DEVICE void multiply_parts(tile::Pipeline<stages>& pipeline, std::uint32_t parity,
                                  const Start& start) {
  tile::consumer_wait(pipeline, tile::PipelineState<stages>{part, parity});
  hw::wgmma_fence();
  start(part);
  hw::wgmma_commit();
  if constexpr (part > 0) release_part<part - 1>(pipeline);
  if constexpr (part + 1 < stages) {
    multiply_parts<part + 1>(pipeline, parity, start);
  } else {
    release_part<part>(pipeline);
  }
}

/// S = Q K^T of the consumer's keys.
template <ForwardVariant V>
TANDEM_DEVICE void compute_own_scores(WideConsumer<V>& own, float (&scores)[V.block_n / 4]) {
  constexpr int keys = V.block_n / 2, steps = V.head_dim / tile::k_step / V.block_parts();
  const int first_byte = keys * tile::row_bytes * own.number;
  multiply_parts(own.shared.k_pipeline, own.k_parity, [&](int part) {
    TANDEM_UNROLL
    for (int step = 0; step < steps; ++step) {
      hw::wgmma_ss<V.operand, keys, hw::Major::k>(
          scores, own.shared.q[0].k_major(part * steps + step),
          own.shared.k[part].k_major(step).advanced(first_byte),
          part + step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
    }
  });
  own.k_parity ^= 1u;
}

/// O += P V for the consumer's columns.
template <ForwardVariant V>
TANDEM_DEVICE void add_own_columns(WideConsumer<V>& own) {
  constexpr int columns = V.value_dim / 2, steps = V.block_n / tile::k_step / V.block_parts();
  const int panel = own.first_column() / tile::panel_columns;
  multiply_parts(own.shared.v_pipeline, own.v_parity, [&](int part) {
    TANDEM_UNROLL
    for (int step = 0; step < steps; ++step) {
      hw::wgmma_ss<V.operand, columns, hw::Major::mn>(
          own.output, own.shared.both.p.k_major(part * steps + step),
          own.shared.v[part].mn_major(step, panel), hw::Accumulate::add);
    }
  });
  own.v_parity ^= 1u;
}

/// Cap, mask and row maxima of the consumer's scores, at a position of the loop; then those of both.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void take_common_maximum(WideConsumer<V>& own, float (&scores)[V.block_n / 4], int position) {
  if constexpr (V.softcap) {
    TANDEM_UNROLL
    for (float& score : scores) score = hw::tanh(score * own.args.score_to_cap);
  }
  if constexpr (kind == BlockKind::masked) {
    const int first_key = key_block<V>(own.args, own.loop, position) * V.block_n + V.block_n / 2 * own.number;
    mask_scores<half_of<V>>(scores, own.limits, first_key);
  }
  own.softmax.template update_row_max<maximum_of<V>>(scores);
  auto& maximum = own.shared.both.maximum;
  if (hw::lane_index() % 4 == 0) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) maximum[own.number][own.own_row + 8 * i] = own.softmax.row_max[i];
  }
  own.sync();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i)
    own.softmax.row_max[i] = hw::max(own.softmax.row_max[i], maximum[1 - own.number][own.own_row + 8 * i]);
}

/// Lines 15-23 for the positions [begin, end) of the loop.
///
/// The maxima of a block are read before the second barrier, and those of the next are written after it. The
/// other consumer's products have read P before it comes to the first barrier of the next block.
template <ForwardVariant V, BlockKind kind>
TANDEM_DEVICE void wide_blocks(WideConsumer<V>& own, int begin, int end) {
  for (int j = begin; j < end; ++j) {  // line 15
    float scores[V.block_n / 4];
    compute_own_scores(own, scores);  // lines 16, 17, 22 (K)
    if (j + 1 == own.loop.count) own.give_queries_back();

    take_common_maximum<V, kind>(own, scores, j);  // line 18
    const tile::Rescale by = own.softmax.template rebase<kind == BlockKind::masked>(own.args.scale_log2);
    const bool rescales = by.needed();
    own.softmax.exponentiate(scores, own.args.scale_log2);  // line 19
    tile::store_rounded<V.operand>(own.shared.both.p, own.first_tile_row(), scores,
                                   V.block_n / 2 * own.number);
    hw::fence_async_proxy();
    if (rescales) tile::scale_rows(own.output, by.factor);  // line 21
    own.sync();

    add_own_columns(own);  // lines 20, 21, 22 (V)
  }
}

/// The sums of probabilities over the keys of both. Both add the same two numbers.
template <ForwardVariant V>
TANDEM_DEVICE void add_sums_of_other(WideConsumer<V>& own) {
  auto& sum = own.shared.both.sum;
  const int thread = static_cast<int>(hw::thread_index()) % hw::warpgroup_size;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) sum[own.number][i][thread] = own.softmax.row_sum[i];
  own.sync();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) own.softmax.row_sum[i] += sum[1 - own.number][i][thread];
}

/// Lines 24 and 25.
template <ForwardVariant V>
TANDEM_DEVICE void store_own_columns(WideConsumer<V>& own, const Work& work) {
  float lse[2], normalise[2];
  own.softmax.finish(lse, normalise);
  const auto rows = OutputRows::of<V>(own.args, work);
  const int row = rows.first_row + own.own_row;
  tile::scale_rows(own.output, normalise);
  store_output<half_of<V>>(own.args, rows, row, own.output, own.first_column());
  if (own.number == 0) store_lse(own.args, rows, row, lse);
}

/// Lines 12-25 for every tile of the block.
template <ForwardVariant V>
TANDEM_DEVICE void consume_wide(const ForwardArguments& args, ForwardShared<V>& shared, int number) {
  const int warp = static_cast<int>(hw::warp_index() % 4);
  const int own_row = tile::upper_row(warp, static_cast<int>(hw::lane_index()));
  WideConsumer<V> own{args, shared, number, own_row, 0, 0, 0, {}, {}, {}, {}};

  constexpr TileRows rows{0, V.block_m};
  int round = 0;
  for (Work work = find_first_work<V>(args, rows, round); work.exists();
       work = find_work<V>(args, rows, ++round)) {
    own.begin(work);                                                                     // line 13
    tile::consumer_wait(shared.q_pipeline[0], tile::PipelineState<1>{0, own.q_parity});  // line 14
    if (own.loop.count == 0) {
      hw::sync_warp();  // as in kernel.h
      own.give_queries_back();
    } else {
      wide_blocks<V, BlockKind::masked>(own, 0, own.loop.full_begin);
      wide_blocks<V, BlockKind::full>(own, own.loop.full_begin, own.loop.full_end);
      wide_blocks<V, BlockKind::masked>(own, own.loop.full_end, own.loop.count);
      add_sums_of_other(own);
    }
    store_own_columns(own, work);
  }
}

}  // namespace tandem::forward
