// Algorithm "plain": the forward's products with the grouped queries as the 64-row operand (Chris Elrod,
// "U/WGMMA Flash Decoding", 8 May 2025, "Flash Attention 3 Refresher"). Most of each WGMMA is padding; warps
// that hold no query row skip the softmax.
#pragma once

#include "decode/consumer.h"
#include "tile/gemm.h"
#include "tile/softmax.h"

namespace tandem::decode {

/// Which 16 rows of the tile the warp has.
template <DecodeVariant V>
TANDEM_DEVICE int warp_of_rows() {
  return V.shares_rows() ? own_warp() % warps : own_warp();
}
/// The first of them.
template <DecodeVariant V>
TANDEM_DEVICE int first_row_of_warp() {
  return 16 * warp_of_rows<V>();
}

/// What a thread holds of the result: two rows of O, unnormalised, and their statistics.
template <DecodeVariant V>
struct PlainResult {
  float output[V.head_dim / 2] = {};
  tile::OnlineSoftmax softmax;

  TANDEM_DEVICE static int upper_row() {
    return tile::upper_row(warp_of_rows<V>(), static_cast<int>(hw::lane_index()));
  }

  /// Sums of rows over all keys.
  TANDEM_DEVICE void complete() {
    TANDEM_UNROLL
    for (float& sum : softmax.row_sum) sum = tile::quad_sum(sum);
  }

  /// visit(row, reference, sum), once for every row of the tile.
  template <typename Visit>
  TANDEM_DEVICE void for_each_row(Visit visit) const {
    if (hw::lane_index() % 4 != 0) return;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) visit(upper_row() + 8 * i, softmax.reference[i], softmax.row_sum[i]);
  }

  /// factor_of(row, reference, sum): what the row is multiplied by.
  template <typename FactorOf>
  TANDEM_DEVICE void normalise(FactorOf factor_of) {
    float factor[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i)
      factor[i] = factor_of(upper_row() + 8 * i, softmax.reference[i], softmax.row_sum[i]);
    tile::scale_rows(output, factor);
  }

  template <typename Tile>
  TANDEM_DEVICE void round_to(Tile& tile) const {
    tile::store_rounded<V.operand>(tile, first_row_of_warp<V>(), output);
  }

  /// Warp: visit(row, column, x, y) for the thread's pairs of neighbouring elements.
  template <typename Visit>
  TANDEM_DEVICE void for_each_piece(Visit visit) const {
    const int column = 2 * static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int j = 0; j < V.head_dim / 2; j += 2) {
      visit(upper_row() + 8 * tile::row_of_accumulator(j), column + tile::column_of_accumulator(j), output[j],
            output[j + 1]);
    }
  }
};

/// Cap, mask and softmax of a block of scores: the warp's 16 rows.
template <DecodeVariant V>
TANDEM_DEVICE void softmax_rows(const Consumer<V>& consumer, const WorkTile& work, int key,
                                PlainResult<V>& result, float (&scores)[V.block_n / 2]) {
  consumer.cap(scores);
  if (consumer.needs_mask(work, key)) {
    const RowLimits limits[2] = {consumer.limits_of(work, result.upper_row()),
                                 consumer.limits_of(work, result.upper_row() + 8)};
    const int own_key = key + 2 * static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j) {
      const auto [begin, end] = limits[tile::row_of_accumulator(j)];
      const int k = own_key + tile::column_of_accumulator(j);
      if (k < begin || k >= end) scores[j] = tile::minus_infinity;
    }
  }
  result.softmax.update_row_max(scores);
  const tile::Rescale rescale = result.softmax.template rebase<true>(consumer.args.scale_log2);
  result.softmax.exponentiate(scores, consumer.args.scale_log2);
  if (rescale.needed()) tile::scale_rows(result.output, rescale.factor);
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_plain(Consumer<V>& consumer, const WorkTile& work, PlainResult<V>& result) {
  DecodeShared<V>& shared = consumer.shared;
  const bool has_rows = first_row_of_warp<V>() < rows_of_tile<V>(consumer.args, work);

  for (int key = work.begin; key < work.end; key += V.block_n) {  // for kv_start in range(BN, num_keys, BN)
    float scores[V.block_n / 2];
    tile::Probabilities<V.block_n> p{};

    consumer.wait_keys(work, key);
    hw::wgmma_fence();
    tile::issue_scores<V.operand>(scores, consumer.shared.q,
                                  shared.k[consumer.k_at.stage].tile[0]);  // S = Q @ K'
    hw::wgmma_commit();
    hw::wgmma_wait<0>();  // S.wait()
    consumer.release_keys();

    if (has_rows) {
      softmax_rows(consumer, work, key, result, scores);  // mask_function ... O = correction * O
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

}  // namespace tandem::decode
