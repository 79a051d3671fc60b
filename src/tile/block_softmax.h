// Softmax of 8-bit products: each block of keys has a reference of its own, the row's maximum in it.
//
// So probabilities fill the range of e4m3 in every block, and P V of a block is a product by itself, which
// fp32 registers add up with the block's weight. The matrix unit, whose sums of e4m3 products keep 13 bits,
// never sums over more than a block. FlashAttention-3 carries one maximum and one accumulator through all
// blocks instead.
#pragma once

#include <limits>

#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::tile {

/// The largest probability of a row in a block is 2^8, of the 448 that e4m3 reaches.
inline constexpr float log2_amplitude = 8;
/// Weights reach 2^64 before the anchor moves: outputs are at most 2^64 * 2^8 * 448 a key.
inline constexpr float log2_most_weight = 64;

/// Running statistics of the thread's two rows. Probability j of the block is 2^(score j * unit + offset),
/// and its weight beside other blocks' 2^(anchor - offset).
struct BlockSoftmax {
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  float anchor[2] = {infinity,
                     infinity};   ///< an offset: of the row's first block that has keys, as long as that does
  float row_sum[2] = {0.f, 0.f};  ///< of the thread's own columns, until `finish`
  float row_max[2];               ///< of the last block only
  float unit[2];                  ///< of the last block's scores, for exponents of two
  float weight[2];                ///< of the last block's P V in the output

  /// Algorithm 1, line 18, for one block alone.
  template <int count>
  TANDEM_DEVICE void take_maximum(const float (&scores)[count]) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_max[i] = scores[2 * i];
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      row_max[row_of_accumulator(j)] = hw::max(row_max[row_of_accumulator(j)], scores[j]);
    }
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_max[i] = quad_max(row_max[i]);
  }

  /// Line 19: turns the block's scores into probabilities and takes them into the sums; the output is brought
  /// to another anchor where a row needs it. `value_scale`: of the block's values. No product may write the
  /// output.
  template <bool masked, int count, int columns>
  TANDEM_DEVICE void exponentiate(float (&scores)[count], float (&output)[columns], float value_scale) {
    float offset[2], share[2], sum[2] = {0.f, 0.f};
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool none = masked && row_max[i] == -infinity;  // any offset leaves all probabilities 0
      offset[i] = none ? infinity : hw::fma(row_max[i], -unit[i], log2_amplitude);
    }
    if (hw::any_lane(anchor[0] - offset[0] > log2_most_weight || anchor[1] - offset[1] > log2_most_weight))
      move_anchor(offset, output);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool none = masked && offset[i] == infinity;
      share[i] = none ? 0.f : hw::exp2(anchor[i] - offset[i]);
      weight[i] = share[i] * value_scale;
      if (none) offset[i] = 0.f;
    }
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      const int i = row_of_accumulator(j);
      scores[j] = hw::exp2(hw::fma(scores[j], unit[i], offset[i]));
      sum[i] += scores[j];
    }
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_sum[i] = hw::fma(share[i], sum[i], row_sum[i]);
  }

  /// Line 21's second half: adds the last block's product, or columns of it from `first` on.
  template <int first, int columns, int count>
  TANDEM_DEVICE void add(float (&output)[columns], const float (&product)[count]) const {
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      output[first + j] = hw::fma(weight[row_of_accumulator(j)], product[j], output[first + j]);
    }
  }

  /// Line 24: as OnlineSoftmax::finish.
  TANDEM_DEVICE void finish(float (&lse)[2], float (&normalise)[2]) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      row_sum[i] = quad_sum(row_sum[i]);
      const bool empty = row_sum[i] == 0.f;
      lse[i] = empty ? -infinity : ln_2 * (hw::log2(row_sum[i]) - anchor[i]);
      normalise[i] = empty ? 0.f : hw::reciprocal(row_sum[i]);
    }
  }

 private:
  /// To the block at hand, of the rows whose weights would leave fp32's range otherwise. Seldom but in a
  /// tile's first block.
  template <int columns>
  TANDEM_DEVICE void move_anchor(const float (&offset)[2], float (&output)[columns]) {
    float factor[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool moves = anchor[i] - offset[i] > log2_most_weight;
      factor[i] = moves ? hw::exp2(offset[i] - anchor[i]) : 1.f;
      if (moves) anchor[i] = offset[i];
      row_sum[i] *= factor[i];
    }
    scale_rows(output, factor);
  }
};

}  // namespace tandem::tile
