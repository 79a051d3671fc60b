// Softmax of 8-bit products: each block of keys has a reference of its own, the row's maximum in it.
//
// So probabilities fill the range of e4m3 in every block, and P V of a block is a product by itself, which
// fp32 registers add up with the block's weight. The matrix unit, whose sums of e4m3 products keep 13 bits,
// never sums over more than a block. FlashAttention-3 carries one maximum and one accumulator through all
// blocks instead.
#pragma once

#include <limits>

#include "hw/hw.h"
#include "tile/gemm.h"
#include "tile/softmax.h"
#include "tile/warp_reduce.h"

namespace tandem::tile {

// Codes: the bits of an e4m3 number, taken as an integer, are nearly 8 times its logarithm and 56 more. So a
// probability's bits are a scaled and rounded score, with no exponential. They stand for 2^x times 1 to
// 1.061; offset_of_codes is so much less that it is right in the mean. Row sums are those of the bits.

/// The largest probability of a row in a block is 2^8, of the 448 that e4m3 reaches.
inline constexpr float log2_amplitude = 8;
/// Code of x is codes_per_octave * x + offset_of_codes, so that the largest probability has that of 2^8.
inline constexpr float codes_per_octave = 8, offset_of_codes = 55.54f;
/// Weights reach 2^64 before the anchor moves: outputs are at most 2^64 * 2^8 * 448 a key.
inline constexpr float log2_most_weight = 64;

/// What is kept of blocks of the thread's two rows, whatever makes their probabilities. A block's weight
/// beside others' is 2^(anchor - its offset).
struct BlockStatistics {
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  /// Offsets: of each row's first block that has keys, as long as that does.
  float anchor[2] = {infinity, infinity};
  float row_sum[2] = {0.f, 0.f};  ///< of the thread's own columns, until `finish`; of codes, of all
  float weight[2];                ///< of the last block's P V in the output
  float share[2];                 ///< of its probabilities in the sums

  /// Line 21's second half: adds the last block's product, or columns of it from `first` on.
  template <int first, int count, int columns, int registers>
  TANDEM_DEVICE void add(float (&output)[columns], const float (&product)[registers]) const {
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      output[first + j] = hw::fma(weight[row_of_accumulator(j)], product[j], output[first + j]);
    }
  }

  /// Adds the last block's sums of probabilities, of all its columns.
  TANDEM_DEVICE void add_sums(float upper, float lower) {
    row_sum[0] = hw::fma(share[0], upper, row_sum[0]);
    row_sum[1] = hw::fma(share[1], lower, row_sum[1]);
  }

  /// Line 24, from sums over all columns: as OnlineSoftmax::finish.
  TANDEM_DEVICE void finish(float (&lse)[2], float (&normalise)[2]) const {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool empty = row_sum[i] == 0.f;
      lse[i] = empty ? -infinity : ln_2 * (hw::log2(row_sum[i]) - anchor[i]);
      normalise[i] = empty ? 0.f : hw::reciprocal(row_sum[i]);
    }
  }

 protected:
  /// The weights of a block by its offsets, infinite ones of rows that see none of its keys; these become 0.
  /// The output is brought to another anchor where a row needs it.
  template <bool masked, int columns>
  TANDEM_DEVICE void weigh(float (&offset)[2], float (&output)[columns], float value_scale) {
    if (hw::any_lane(anchor[0] - offset[0] > log2_most_weight || anchor[1] - offset[1] > log2_most_weight))
      move_anchor(offset, output);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool none = masked && offset[i] == infinity;
      share[i] = none ? 0.f : hw::exp2(anchor[i] - offset[i]);
      weight[i] = share[i] * value_scale;
      if (none) offset[i] = 0.f;
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

/// Running statistics of the thread's two rows. Probability j of the block is 2^(score j * unit + offset).
/// `codes`: probabilities are made as codes. `sums`:
/// scores are sums of integers as gemm.h leaves them, base_of_sums too large.
template <bool codes, bool sums>
struct BlockSoftmax : BlockStatistics {
  /// Octaves a unit of `sums`, up to which the line through their exponents, or codes, reaches down to where
  /// the float is 0 with an error that shows nowhere: of 2^-7 of a code, or 2^-10 of an octave.
  static constexpr float most_unit = 1.f / 384;

  float row_max[2];  ///< of the last block only
  float unit[2];     ///< of the last block's scores, for exponents of two

  /// Algorithm 1, line 18, for one block alone.
  template <Maximum how, int count>
  TANDEM_DEVICE void update_row_max(const float (&scores)[count]) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_max[i] = scores[2 * i];
    if constexpr (sums || how == Maximum::bits_in_threes) {
      TANDEM_UNROLL
      for (int j = 0; j < count; j += 2) {
        float& top = row_max[row_of_accumulator(j)];
        top = hw::max_of_bits(top, scores[j], scores[j + 1]);
      }
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) row_max[i] = quad_max_or_nan(row_max[i]);
      if constexpr (sums) return;  // all are positive, or -inf
      if (!hw::any_lane(row_max[0] < 0.f || row_max[1] < 0.f)) return;
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) row_max[i] = scores[2 * i];
    }
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      row_max[row_of_accumulator(j)] = hw::max_or_nan(row_max[row_of_accumulator(j)], scores[j]);
    }
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_max[i] = quad_max_or_nan(row_max[i]);
  }

  /// Line 19: turns the block's scores into probabilities and takes them into the sums; the output is brought
  /// to another anchor where a row needs it. `value_scale`: of the block's values. No product may write the
  /// output.
  template <bool masked, int count, int columns>
  TANDEM_DEVICE void exponentiate(float (&scores)[count], float (&output)[columns], float value_scale) {
    float offset[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool none = masked && row_max[i] == -infinity;  // any offset leaves all probabilities 0
      const float top = sums ? row_max[i] - base_of_sums : row_max[i];
      offset[i] = none ? infinity : hw::fma(top, -unit[i], log2_amplitude);
    }
    const bool steep = sums && hw::any_lane(unit[0] > most_unit || unit[1] > most_unit);
    if (sums && !steep) {
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) offset[i] = on_line(offset[i], unit[i]);
    }
    weigh<masked>(offset, output, value_scale);
    if constexpr (codes) {
      make_codes<masked>(scores, offset, steep);
    } else {
      make_probabilities<masked>(scores, offset, steep);
    }
  }

  /// Line 24: as OnlineSoftmax::finish.
  TANDEM_DEVICE void finish(float (&lse)[2], float (&normalise)[2]) {
    if constexpr (!codes) {
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) row_sum[i] = quad_sum(row_sum[i]);
    }
    BlockStatistics::finish(lse, normalise);
  }

 private:
  /// Codes have no NaN: a row's maximum has to carry it.
  TANDEM_DEVICE static float quad_max_or_nan(float x) {
    return warp_reduce<4>(x, [](float a, float b) { return hw::max_or_nan(a, b); });
  }
  /// The offset that the line has once it was rounded where the float is 0: as weights go by that one number,
  /// its rounding cancels. An infinite one stays.
  TANDEM_DEVICE static float on_line(float offset, float unit) {
    const float slope = codes ? codes_per_octave * unit : unit;
    const float first = codes ? hw::fma(codes_per_octave, offset, offset_of_codes) : offset;
    const float rounded = hw::fma(slope, base_of_sums, hw::fma(slope, -base_of_sums, first));
    return codes ? hw::fma(rounded, 1 / codes_per_octave, -offset_of_codes / codes_per_octave) : rounded;
  }
  /// Scores that are `sums` for the line slope * score + first: moves the line to where they lie, or, if it
  /// is `steep`, the scores to where `at_top` is its value.
  template <bool masked, int count>
  TANDEM_DEVICE void bring_together(float (&scores)[count], const float (&slope)[2], float (&first)[2],
                                    float at_top, bool steep) {
    if (!steep) {
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) first[i] = hw::fma(slope[i], -base_of_sums, first[i]);
      return;
    }
    float top[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      top[i] = masked && row_max[i] == -infinity ? base_of_sums : row_max[i];
      first[i] = at_top;
    }
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) scores[j] -= top[row_of_accumulator(j)];
  }
  template <bool masked, int count>
  TANDEM_DEVICE void make_codes(float (&scores)[count], const float (&offset)[2], bool steep) {
    float per_score[2], first[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      per_score[i] = codes_per_octave * unit[i];
      first[i] = hw::fma(codes_per_octave, offset[i], offset_of_codes);
    }
    if constexpr (sums)
      bring_together<masked>(scores, per_score, first, codes_per_octave * log2_amplitude + offset_of_codes,
                             steep);
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      const int i = row_of_accumulator(j);
      scores[j] = hw::fma(scores[j], per_score[i], first[i]);
    }
  }
  template <bool masked, int count>
  TANDEM_DEVICE void make_probabilities(float (&scores)[count], const float (&offset)[2], bool steep) {
    float sum[2] = {0.f, 0.f}, first[2] = {offset[0], offset[1]};
    if constexpr (sums) bring_together<masked>(scores, unit, first, log2_amplitude, steep);
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      const int i = row_of_accumulator(j);
      scores[j] = hw::exp2(hw::fma(scores[j], unit[i], first[i]));
      sum[i] += scores[j];
    }
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_sum[i] = hw::fma(share[i], sum[i], row_sum[i]);
  }
};

}  // namespace tandem::tile
