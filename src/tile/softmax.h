// Online softmax in base 2 over accumulator fragments.
#pragma once

#include <limits>
#include <numbers>

#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::tile {

inline constexpr float ln_2 = std::numbers::ln2_v<float>;
/// The score of a key that a row does not see, and lse of a row that sees none.
inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// The reference of a row that has seen no key. Finite, as -inf - -inf would be NaN: all probabilities are 0
/// then, and so is the factor from here to any other reference.
inline constexpr float no_reference = std::numeric_limits<float>::lowest();

/// Accumulator j belongs to the upper (0) or lower (1) of the two rows that a thread holds.
constexpr int row_of_accumulator(int j) { return (j / 2) % 2; }
/// Its column within the tile, without the thread's own offset 2 * (lane % 4).
constexpr int column_of_accumulator(int j) { return j / 4 * 8 + j % 2; }

/// max or sum over the four lanes that share a row.
TANDEM_DEVICE float quad_max(float x) { return warp_max<4>(x); }
TANDEM_DEVICE float quad_sum(float x) { return warp_sum<4>(x); }

/// Factors by which the output has to be multiplied before a block is added.
struct Rescale {
  float factor[2];

  /// Whether any row of the warp has a factor other than 1.
  TANDEM_DEVICE bool needed() const { return hw::any_lane(factor[0] != 1.f || factor[1] != 1.f); }
};

/// How row maxima are found: by the instruction for floats, or by the one for integers, which takes three and
/// is right unless all scores of a row are negative; then the first does it again.
enum class Maximum { float_, bits_in_threes };

/// Which of a block's probabilities: all; one in eight, of the upper row; the others.
enum class Part { all, early, late };
constexpr bool is_in(Part part, int j) {
  const bool early = row_of_accumulator(j) == 0 && j / 4 % 4 == 0;
  return part == Part::all || early == (part == Part::early);
}

/// Running statistics of the thread's two rows. row_max is in units of raw scores. `reference` is what is
/// subtracted in the exponents: row_max times scale_log2 as it was rounded. Probabilities, rescaling and lse
/// all go by that one number, so that its rounding cancels, however many blocks there are. row_sum holds the
/// thread's own columns only, until `finish`.
struct OnlineSoftmax {
  float row_max[2] = {minus_infinity, minus_infinity};
  float reference[2] = {no_reference, no_reference};
  float row_sum[2] = {0.f, 0.f};

  /// Algorithm 1, line 18: takes one block of scores into the maxima.
  template <Maximum how = Maximum::float_, int count>
  TANDEM_DEVICE void update_row_max(const float (&scores)[count]) {
    const float last_max[2] = {row_max[0], row_max[1]};
    if constexpr (how == Maximum::bits_in_threes) {
      take_bits(scores);
      finish_maximum();
      if (!hw::any_lane(row_max[0] < 0.f || row_max[1] < 0.f)) return;
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) row_max[i] = last_max[i];
    }
    take_floats(scores);
    finish_maximum();
  }

  /// Algorithm 1, line 19, its first half: moves the sums to the maxima that were taken last. `masked`, here
  /// and below: a row may have seen no key yet.
  template <bool masked>
  TANDEM_DEVICE Rescale rebase(float scale_log2) {
    Rescale rescale;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float last = reference[i];
      reference[i] = row_max[i] * scale_log2;
      if constexpr (masked) reference[i] = hw::max(reference[i], no_reference);
      rescale.factor[i] = hw::exp2(last - reference[i]);
      row_sum[i] *= rescale.factor[i];
    }
    return rescale;
  }

  /// Algorithm 1, line 19, its second half: turns scores of the block into probabilities, exp2((S - m) *
  /// scale_log2), and takes them into the sums. In two parts some exponentials can come while a product runs.
  template <Part part = Part::all, int count>
  TANDEM_DEVICE void exponentiate(float (&scores)[count], float scale_log2) {
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      if (!is_in(part, j)) continue;
      const int i = row_of_accumulator(j);
      scores[j] = hw::exp2(hw::fma(scores[j], scale_log2, -reference[i]));
      row_sum[i] += scores[j];
    }
  }

  /// Algorithm 1, line 24: row sums over all columns; lse (natural log) and the factor that normalises the
  /// output. A row that saw no key gets lse -inf and factor 0.
  TANDEM_DEVICE void finish(float (&lse)[2], float (&normalise)[2]) {
    finish_sums(lse);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) normalise[i] = factor_of(row_sum[i]);
  }

 protected:
  TANDEM_DEVICE void finish_sums(float (&lse)[2]) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      row_sum[i] = quad_sum(row_sum[i]);
      lse[i] = row_sum[i] == 0.f ? minus_infinity : ln_2 * (reference[i] + hw::log2(row_sum[i]));
    }
  }
  TANDEM_DEVICE static float factor_of(float sum) { return sum == 0.f ? 0.f : hw::reciprocal(sum); }

  /// The thread's own maxima.
  template <int count>
  TANDEM_DEVICE void take_bits(const float (&scores)[count]) {
    TANDEM_UNROLL
    for (int j = 0; j < count; j += 2) {
      float& top = row_max[row_of_accumulator(j)];
      top = hw::max_of_bits(top, scores[j], scores[j + 1]);
    }
  }
  template <int count>
  TANDEM_DEVICE void take_floats(const float (&scores)[count]) {
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      row_max[row_of_accumulator(j)] = hw::max(row_max[row_of_accumulator(j)], scores[j]);
    }
  }

 private:
  /// Over the four lanes that share the rows.
  TANDEM_DEVICE void finish_maximum() {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) row_max[i] = quad_max(row_max[i]);
  }
};

/// A sink: one more key, of score `sink`, that has no value. Moves a row's lse and factor as `finish` left
/// them. Without weight (-inf) it changes no bit.
TANDEM_DEVICE void add_sink(float sink, float& lse, float& normalise) {
  constexpr float log2_e = std::numbers::log2e_v<float>;
  const float top = hw::max(lse, sink), bottom = lse < sink ? lse : sink;
  if (top == minus_infinity) return;
  const float with_sink = hw::fma(ln_2, hw::log2(1.f + hw::exp2((bottom - top) * log2_e)), top);
  normalise *= hw::exp2((lse - with_sink) * log2_e);
  lse = with_sink;
}

/// Multiplies each output row by its factor.
template <int count>
TANDEM_DEVICE void scale_rows(float (&output)[count], const float (&factor)[2]) {
  TANDEM_UNROLL
  for (int j = 0; j < count; ++j) output[j] *= factor[row_of_accumulator(j)];
}

}  // namespace tandem::tile
