// Algorithm "paired": plain's products by two warpgroups, so that one's softmax runs beside the other's
// products. Of a tile of 128 rows each has 64 and visits all blocks of keys; of one of 64 rows each takes
// every other block, and at the end they bring their results together.
//
// Sources: Shah et al., "FlashAttention-3", 2024, section 3.1, for two warpgroups over the same keys; Dao et
// al., "Flash-Decoding", 2023, for results of parts of the keys.
#pragma once

#include <cstdint>
#include <type_traits>

#include "decode/partials.h"
#include "decode/plain.h"

namespace tandem::decode {

/// What a thread holds of the finished result: `columns` columns of O from first_column() on, unnormalised,
/// of two rows, and their statistics.
template <DecodeVariant V>
struct PairedResult {
  static constexpr int columns = V.shares_rows() ? V.value_dim / 2 : V.value_dim;
  float output[columns / 2];
  float reference[2], sum[2];

  TANDEM_DEVICE static int upper_row() { return PlainResult<V>::upper_row(); }
  /// May be asked for where lanes differ.
  TANDEM_DEVICE static int first_column() { return V.shares_rows() ? columns * (own_warp() / warps) : 0; }
  /// first_column() and the warp's first row, by the index that all its lanes ask for together: no register
  /// holds them, or addresses with them, while keys are visited.
  TANDEM_DEVICE static int columns_before() { return columns * own_warpgroup<V>(); }
  TANDEM_DEVICE static int rows_before() { return 16 * (static_cast<int>(hw::warp_index()) % warps); }

  /// visit(row, reference, sum), once for every row of the tile.
  template <typename Visit>
  TANDEM_DEVICE void for_each_row(Visit visit) const {
    if (hw::lane_index() % 4 != 0 || first_column() != 0) return;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) visit(upper_row() + 8 * i, reference[i], sum[i]);
  }
  /// factor_of(row, reference, sum): what the row is multiplied by.
  template <typename FactorOf>
  TANDEM_DEVICE void normalise(FactorOf factor_of) {
    float factor[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) factor[i] = factor_of(upper_row() + 8 * i, reference[i], sum[i]);
    tile::scale_rows(output, factor);
  }
  template <typename Tile>
  TANDEM_DEVICE void round_to(Tile& tile) const {
    if constexpr (V.values_in_keys()) {
      tile::store_rounded<V.operand>(tile.template part<columns>(columns_before() / tile::panel_columns),
                                     rows_before(), output);
    } else {
      tile::store_rounded<V.operand>(tile, first_row_of_warp<V>(), output, first_column());
    }
  }
  /// Warp: visit(row, column, x, y) for the thread's pairs of neighbouring elements.
  template <typename Visit>
  TANDEM_DEVICE void for_each_piece(Visit visit) const {
    // Of many columns: no place takes a register of its own.
    using Column = std::conditional_t<V.values_in_keys(), std::int64_t, int>;
    const Column column =
        (V.values_in_keys() ? columns_before() : first_column()) + 2 * static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int j = 0; j < columns / 2; j += 2) {
      visit(upper_row() + 8 * tile::row_of_accumulator(j), column + tile::column_of_accumulator(j), output[j],
            output[j + 1]);
    }
  }
};

/// Stages are even in number, and stage s is always warpgroup s % 2's: a warpgroup that waited for a stage of
/// the other might be a whole round ahead of it, where parities say nothing.
template <DecodeVariant V>
TANDEM_DEVICE void begin_at_own_stage(Consumer<V>& consumer) {
  static_assert(V.stages % 2 == 0);
  if (own_warpgroup<V>() == 0) return;
  consumer.k_at.advance();
}

/// The warpgroup's S = Q K^T.
template <DecodeVariant V>
TANDEM_DEVICE void start_paired_scores(Consumer<V>& consumer, float (&scores)[V.block_n / 2]) {
  const auto& keys = consumer.shared.k[consumer.k_at.stage].tile[0];
  const int first_byte = V.splits_keys() ? 0 : 64 * own_warpgroup<V>() * tile::row_bytes;
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int step = 0; step < V.head_dim / tile::k_step; ++step) {
    hw::wgmma_ss<V.operand, V.block_n, hw::Major::k>(
        scores, consumer.shared.q.k_major(step).advanced(first_byte), keys.k_major(step),
        step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
  hw::wgmma_commit();
}

/// The warpgroup's blocks of the work tile.
template <DecodeVariant V>
TANDEM_DEVICE void attend_paired(Consumer<V>& consumer, const WorkTile& work, PlainResult<V>& result) {
  constexpr int stride = V.splits_keys() ? 2 * V.block_n : V.block_n;
  int key = work.begin;
  if constexpr (V.splits_keys()) {
    if (consumer.first_visitor != own_warpgroup<V>()) key += V.block_n;
    consumer.first_visitor ^= (work.end - work.begin + V.block_n - 1) / V.block_n % 2;
  }
  const bool has_rows = first_row_of_warp<V>() < rows_of_tile<V>(consumer.args, work);
  for (; key < work.end; key += stride) {
    float scores[V.block_n / 2];
    tile::Probabilities<V.block_n> p{};

    consumer.wait_keys(work, key);
    start_paired_scores(consumer, scores);  // S = Q @ K'
    hw::wgmma_wait<0>();
    consumer.release_keys();

    if (has_rows) {
      softmax_rows(consumer, work, key, result, scores);  // P = exp(S - row_max), O = correction * O
      tile::round_probabilities<V.operand>(p, scores);
    }

    consumer.wait_values();
    hw::wgmma_fence();
    tile::start_output<V.operand>(result.output, p, consumer.values().tile[0]);  // O += P @ V
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    consumer.release_values();
  }
}

/// Of two warpgroups that have split the keys, each finishes half the columns: it gives the other half away,
/// and adds to its own what the other gives.
template <DecodeVariant V>
TANDEM_DEVICE void exchange_halves(Consumer<V>& consumer, const PlainResult<V>& own,
                                   PairedResult<V>& result) {
  auto& exchange = consumer.shared.own.exchange;
  constexpr int count = V.head_dim / 4;
  const int warpgroup = own_warpgroup<V>(),
            thread = static_cast<int>(hw::thread_index()) % hw::warpgroup_size;
  const bool second = warpgroup != 0;
  TANDEM_UNROLL
  for (int j = 0; j < count; ++j) {
    const float lower = own.output[j], upper = own.output[count + j];
    exchange.output[warpgroup][j][thread] = second ? lower : upper;
    result.output[j] = second ? upper : lower;
  }
  if (hw::lane_index() % 4 == 0) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      exchange.reference[warpgroup][result.upper_row() + 8 * i] = own.softmax.reference[i];
      exchange.sum[warpgroup][result.upper_row() + 8 * i] = own.softmax.row_sum[i];
    }
  }
  sync_consumers<V>();
  sync_consumers<V>();  // for racecheck, to which the first loads behind one barrier are early
                        // (docs/performance.md)
  float own_factor[2], other_factor[2];
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = result.upper_row() + 8 * i;
    const float other = exchange.reference[1 - warpgroup][row];
    result.reference[i] = hw::max(own.softmax.reference[i], other);
    own_factor[i] = hw::exp2(own.softmax.reference[i] - result.reference[i]);
    other_factor[i] = hw::exp2(other - result.reference[i]);
    result.sum[i] =
        hw::fma(exchange.sum[1 - warpgroup][row], other_factor[i], own.softmax.row_sum[i] * own_factor[i]);
  }
  TANDEM_UNROLL
  for (int j = 0; j < count; ++j) {
    const int i = tile::row_of_accumulator(j);
    result.output[j] =
        hw::fma(exchange.output[1 - warpgroup][j][thread], other_factor[i], result.output[j] * own_factor[i]);
  }
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_paired_and_finish(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                                            const WorkTile& work) {
  PlainResult<V> own;
  attend_paired(consumer, work, own);
  own.complete();
  PairedResult<V> result;
  if constexpr (V.splits_keys()) {
    exchange_halves(consumer, own, result);
  } else {
    TANDEM_UNROLL
    for (int j = 0; j < V.head_dim / 2; ++j) result.output[j] = own.output[j];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i)
      result.reference[i] = own.softmax.reference[i], result.sum[i] = own.softmax.row_sum[i];
  }
  finish_work(consumer, scheduler, work, result);
}

}  // namespace tandem::decode
