// What the transposed algorithms share: S^T = K Q^T, softmax over columns, O^T in registers (Chris Elrod,
// "U/WGMMA Flash Decoding", 8 May 2025, "What if we transpose our operations?").
//
// A thread of warp w, lane l, holds of a 64 x columns accumulator in [4 * j + 2 * i + c] row 16 * w + l / 4 +
// 8 * i, column 8 * j + 2 * (l % 4) + c. Rows are keys (S^T) or output columns (O^T); columns are query rows.
#pragma once

#include "decode/consumer.h"
#include "hw/hw.h"
#include "tile/gemm.h"
#include "tile/softmax.h"
#include "tile/warp_reduce.h"

namespace tandem::decode {

/// The thread's own columns of a tile: how many, which is number k, and which is accumulator j's.
template <int columns>
inline constexpr int own_columns = columns / 4;
TANDEM_DEVICE int column_of(int k) { return k / 2 * 8 + 2 * static_cast<int>(hw::lane_index() % 4) + k % 2; }
constexpr int own_column(int accumulator) { return accumulator / 4 * 2 + accumulator % 2; }

/// The thread's row in a tile of 64, without 8 * i.
template <DecodeVariant V>
TANDEM_DEVICE int upper_row_of_thread() {
  return tile::upper_row(own_warp(), static_cast<int>(hw::lane_index()));
}

/// Over the eight lanes that hold the same columns.
TANDEM_DEVICE float column_max(float x) { return tile::warp_max<hw::warp_size, 4>(x); }
TANDEM_DEVICE float column_sum(float x) { return tile::warp_sum<hw::warp_size, 4>(x); }

/// The warp's numbers of columns, of which its lanes have the same, to shared memory.
template <int columns>
TANDEM_DEVICE void give_columns(float (&shared)[warps][columns], const float (&own)[own_columns<columns>]) {
  if (hw::lane_index() >= 4) return;
  TANDEM_UNROLL
  for (int k = 0; k < own_columns<columns>; ++k) shared[own_warp()][column_of(k)] = own[k];
}
/// Those of all warps, once they are there, joined.
template <int columns, typename Join>
TANDEM_DEVICE void take_columns(float (&own)[own_columns<columns>], const float (&shared)[warps][columns],
                                const Join& join) {
  TANDEM_UNROLL
  for (int k = 0; k < own_columns<columns>; ++k) {
    own[k] = shared[0][column_of(k)];
    TANDEM_UNROLL
    for (int warp = 1; warp < warps; ++warp) own[k] = join(own[k], shared[warp][column_of(k)]);
  }
}

/// Rounds a 64 x columns accumulator into a tile that has a row for each of its columns, from column `first`
/// of the tile on.
template <DecodeVariant V, typename Tile>
TANDEM_DEVICE void store_transposed(Tile& to, int first, const float (&accumulators)[V.query_rows / 2]) {
  constexpr int count =
      V.query_rows == 8 ? 2 : 4;  // matrices at once: two halves of 16 columns, one or two of 8 rows
  const int lane = static_cast<int>(hw::lane_index());
  const int column = first + 16 * own_warp() + lane / 8 % 2 * 8;
  TANDEM_UNROLL
  for (int j = 0; j < V.query_rows / 2; j += 2 * count) {
    std::uint32_t matrices[count];
    TANDEM_UNROLL
    for (int m = 0; m < count; ++m) {
      matrices[m] = hw::pack<V.products()>(accumulators[j + 2 * m], accumulators[j + 2 * m + 1]);
    }
    const int row = j * 2 + (count == 4 ? lane / 16 * 8 : 0) + lane % 8;
    hw::store_matrices_transposed(&to.chunk(row, column), matrices);
  }
}

template <DecodeVariant V>
using TransposedScores = float[V.subtiles()][V.query_rows / 2];

/// The largest of a thread's scores in its column number k.
template <int columns, int tiles>
TANDEM_DEVICE float own_maximum(const float (&scores)[tiles][columns / 2], int k) {
  float x = tile::minus_infinity;
  TANDEM_UNROLL
  for (int i = 0; i < 2 * tiles; ++i) x = hw::max(x, scores[i / 2][k / 2 * 4 + i % 2 * 2 + k % 2]);
  return x;
}

/// Online softmax of the thread's columns. `reference` is what is subtracted in the exponents of 2, as
/// tile::OnlineSoftmax has it; sums are of the thread's own keys until somebody adds them up. A reference
/// stays as long as probabilities are at most 2^head_room, which no format of theirs minds: it is seldom
/// raised after a stream's first block, and mostly nobody has to know the others' maxima. Many columns leave
/// no registers for what that takes.
template <int columns>
struct ColumnSoftmax {
  static constexpr int own = own_columns<columns>;
  static constexpr float head_room = columns <= 32 ? 8.f : 0.f;
  static constexpr bool sums_are_rounded = head_room > 0.f;
  /// `sum`: of probabilities as they are rounded, which O is made of. Where no probability is 1, a row of one
  /// key would have that one's rounding. `exact_sum`: of those that are not, for lse.
  float reference[own], sum[own], exact_sum[own];

  TANDEM_DEVICE ColumnSoftmax() {
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) reference[k] = tile::no_reference, sum[k] = exact_sum[k] = 0.f;
  }

  /// Whether a score of the thread's asks for a higher reference.
  template <int tiles>
  TANDEM_DEVICE bool exceeds(const float (&scores)[tiles][columns / 2], float scale_log2) const {
    bool any = false;
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k)
      any = any || own_maximum<columns>(scores, k) * scale_log2 > reference[k] + head_room;
    return any;
  }

  /// Raises references to a block's maxima where these are more than `room` above. `factor` brings what was
  /// added up before to the new reference.
  TANDEM_DEVICE void raise(const float (&maxima)[own], float (&factor)[own], float scale_log2, float room) {
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) {
      const float last = reference[k], wanted = maxima[k] * scale_log2;
      reference[k] = wanted > last + room ? wanted : last;
      factor[k] = hw::exp2(last - reference[k]);
      sum[k] *= factor[k];
      exact_sum[k] *= factor[k];
    }
  }

  /// Of scores to probabilities, rounded.
  template <hw::Operand operand, int tiles>
  TANDEM_DEVICE void exponentiate(float (&scores)[tiles][columns / 2], float scale_log2) {
    TANDEM_UNROLL
    for (auto& tile : scores) {
      TANDEM_UNROLL
      for (int j = 0; j < columns / 2; j += 2) {
        const int k = own_column(j);  // and its neighbour
        const float x = hw::exp2(hw::fma(tile[j], scale_log2, -reference[k])),
                    y = hw::exp2(hw::fma(tile[j + 1], scale_log2, -reference[k + 1]));
        exact_sum[k] += x, exact_sum[k + 1] += y;
        const std::uint32_t both = hw::pack<operand>(x, y);
        tile[j] = hw::unpack_low<operand>(both), tile[j + 1] = hw::unpack_high<operand>(both);
        sum[k] += sums_are_rounded ? tile[j] : x, sum[k + 1] += sums_are_rounded ? tile[j + 1] : y;
      }
    }
  }
};

/// What the warpgroup holds of the result: O^T, unnormalised, and the statistics of its columns.
template <DecodeVariant V>
struct TransposedResult {
  static constexpr int own = own_columns<V.query_rows>;
  float output[V.value_dim / 64][V.query_rows / 2] = {};
  ColumnSoftmax<V.query_rows> softmax;

  /// visit(row, reference, sum), once for every row of the tile.
  template <typename Visit>
  TANDEM_DEVICE void for_each_row(Visit visit) const {
    if (hw::thread_index() >= 4) return;
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) visit(column_of(k), softmax.reference[k], softmax.sum[k]);
  }

  TANDEM_DEVICE void scale(const float (&factor)[own]) {
    TANDEM_UNROLL
    for (auto& tile : output) {
      TANDEM_UNROLL
      for (int j = 0; j < V.query_rows / 2; ++j) tile[j] *= factor[own_column(j)];
    }
  }

  TANDEM_DEVICE void scale_all(float factor) {
    TANDEM_UNROLL
    for (auto& tile : output) {
      TANDEM_UNROLL
      for (float& x : tile) x *= factor;
    }
  }

  /// Brings O to the exact sums, which are the sums from here on.
  TANDEM_DEVICE void take_exact_sums() {
    float factor[own];
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) {
      const float rounded = softmax.sum[k];
      softmax.sum[k] = softmax.exact_sum[k];
      factor[k] = rounded > 0.f ? softmax.sum[k] * hw::reciprocal(rounded) : 1.f;
    }
    scale(factor);
  }

  /// factor_of(row, reference, sum): what the row is multiplied by.
  template <typename FactorOf>
  TANDEM_DEVICE void normalise(FactorOf factor_of) {
    float factor[own];
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) factor[k] = factor_of(column_of(k), softmax.reference[k], softmax.sum[k]);
    scale(factor);
  }

  /// To a tile with a row for each query row.
  template <typename Tile>
  TANDEM_DEVICE void round_to(Tile& tile) const {
    TANDEM_UNROLL
    for (int m = 0; m < V.value_dim / 64; ++m) store_transposed<V>(tile, 64 * m, output[m]);
  }

  /// visit(row, column, x) for the thread's elements of O: eight threads of a warp have those of a sector of
  /// 32 bytes. A piece of two neighbours would take a shuffle and many instructions, which a block that
  /// stores once or twice has to fetch first.
  template <typename Visit>
  TANDEM_DEVICE void for_each_piece(Visit visit) const {
    TANDEM_UNROLL
    for (int j = 0; j < V.query_rows / 2; ++j) {
      TANDEM_UNROLL
      for (int m = 0; m < V.value_dim / 64; ++m)
        visit(column_of(own_column(j)), 64 * m + upper_row_of_thread<V>() + j % 4 / 2 * 8, output[m][j]);
    }
  }
};

/// Starts S^T = K Q^T for the block of keys that is full.
template <DecodeVariant V>
TANDEM_DEVICE void start_scores(Consumer<V>& consumer, TransposedScores<V>& scores) {
  auto& keys = consumer.shared.k[consumer.k_at.stage];
  hw::wgmma_fence();
  TANDEM_UNROLL
  for (int tile = 0; tile < V.subtiles(); ++tile) {
    TANDEM_UNROLL
    for (int step = 0; step < V.head_dim / tile::k_step; ++step) {
      hw::wgmma_ss<V.operand, V.query_rows, hw::Major::k>(
          scores[tile], keys.tile[tile].k_major(step), consumer.shared.q.k_major(step),
          step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
    }
  }
  hw::wgmma_commit();
}

template <DecodeVariant V>
TANDEM_DEVICE void cap_and_mask(const Consumer<V>& consumer, const WorkTile& work, int key,
                                TransposedScores<V>& scores) {
  constexpr int own = own_columns<V.query_rows>;
  TANDEM_UNROLL
  for (auto& tile : scores) consumer.cap(tile);
  if (consumer.needs_mask(work, key)) {
    TANDEM_UNROLL
    for (int k = 0; k < own; ++k) {
      const RowLimits limits = consumer.limits_of(work, column_of(k));
      TANDEM_UNROLL
      for (int i = 0; i < 2 * V.subtiles(); ++i) {
        const int own_key = key + i / 2 * 64 + upper_row_of_thread<V>() + i % 2 * 8;
        const bool seen = own_key >= limits.begin && own_key < limits.end;
        float& score = scores[i / 2][k / 2 * 4 + i % 2 * 2 + k % 2];
        score = seen ? score : tile::minus_infinity;
      }
    }
  }
}

/// The largest of the warp's scores in each column that the thread holds.
template <DecodeVariant V>
TANDEM_DEVICE void reduce_maxima(const TransposedScores<V>& scores,
                                 float (&maxima)[own_columns<V.query_rows>]) {
  TANDEM_UNROLL
  for (int k = 0; k < own_columns<V.query_rows>; ++k)
    maxima[k] = column_max(own_maximum<V.query_rows>(scores, k));
}

}  // namespace tandem::decode
