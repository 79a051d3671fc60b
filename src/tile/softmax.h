// Online softmax in base 2 over accumulator fragments.
#pragma once

#include <limits>
#include <numbers>

#include "hw/hw.h"

namespace tandem::tile {

inline constexpr float ln_2 = std::numbers::ln2_v<float>;

/// Accumulator j belongs to the upper (0) or lower (1) of the two rows that a thread holds.
constexpr int row_of_accumulator(int j) { return (j / 2) % 2; }
/// Its column within the tile, without the thread's own offset 2 * (lane % 4).
constexpr int column_of_accumulator(int j) { return j / 4 * 8 + j % 2; }

/// max or sum over the four lanes that share a row.
TANDEM_DEVICE float quad_max(float x) {
  x = hw::max(x, hw::shuffle_xor(x, 1));
  return hw::max(x, hw::shuffle_xor(x, 2));
}
TANDEM_DEVICE float quad_sum(float x) {
  x += hw::shuffle_xor(x, 1);
  return x + hw::shuffle_xor(x, 2);
}

/// Factors by which the output has to be multiplied before a block is added.
struct Rescale {
  float factor[2];
  bool needed;  ///< the same in the whole warp; false: no row of it has a new maximum, all factors are 1
};

/// Running statistics of the thread's two rows. row_max is in units of raw scores; row_sum holds the thread's
/// own columns only, until `finish`.
struct OnlineSoftmax {
  float row_max[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  float row_sum[2] = {0.f, 0.f};

  /// Algorithm 1, lines 18 and 19: takes one block of scores into the maxima and sums and turns the scores
  /// into probabilities, exp2((S - m) * scale_log2). `masked`: a row may have seen no key yet.
  template <bool masked, int count>
  TANDEM_DEVICE Rescale update(float (&scores)[count], float scale_log2) {
    float new_max[2] = {row_max[0], row_max[1]}, offset[2];
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      new_max[row_of_accumulator(j)] = hw::max(new_max[row_of_accumulator(j)], scores[j]);
    }
    Rescale rescale;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      new_max[i] = quad_max(new_max[i]);
      // -inf - -inf would be NaN; any finite reference leaves all of these probabilities 0.
      const bool none = masked && new_max[i] == -std::numeric_limits<float>::infinity();
      offset[i] = (none ? 0.f : new_max[i]) * scale_log2;
      rescale.factor[i] = hw::exp2(hw::fma(row_max[i], scale_log2, -offset[i]));
      row_sum[i] *= rescale.factor[i];
    }
    rescale.needed = hw::any_lane(new_max[0] != row_max[0] || new_max[1] != row_max[1]);
    row_max[0] = new_max[0], row_max[1] = new_max[1];
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      const int i = row_of_accumulator(j);
      scores[j] = hw::exp2(hw::fma(scores[j], scale_log2, -offset[i]));
      row_sum[i] += scores[j];
    }
    return rescale;
  }

  /// Algorithm 1, line 24: row sums over all columns; lse (natural log) and the factor that normalises the
  /// output. A row that saw no key gets lse -inf and factor 0.
  TANDEM_DEVICE void finish(float scale_log2, float (&lse)[2], float (&normalise)[2]) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      row_sum[i] = quad_sum(row_sum[i]);
      const bool empty = row_sum[i] == 0.f;
      lse[i] = empty ? -std::numeric_limits<float>::infinity()
                     : ln_2 * hw::fma(row_max[i], scale_log2, hw::log2(row_sum[i]));
      normalise[i] = empty ? 0.f : hw::reciprocal(row_sum[i]);
    }
  }
};

/// Multiplies each output row by its factor.
template <int count>
TANDEM_DEVICE void scale_rows(float (&output)[count], const float (&factor)[2]) {
  TANDEM_UNROLL
  for (int j = 0; j < count; ++j) output[j] *= factor[row_of_accumulator(j)];
}

}  // namespace tandem::tile
