// Online softmax whose references stay: what is subtracted in the exponents follows a row's maximum only
// where that is 2^head_room above it. So few blocks rescale anything, and no lane has to know the others'
// maxima.
//
// Source: Zadouri et al., "FlashAttention-4", 2026, skip the rescaling by the same rule.
#pragma once

#include "tile/softmax.h"

namespace tandem::tile {

/// row_max holds the maximum of the thread's own columns, until `finish`. What a row gets is what its own
/// scores ask for, whichever rows share the warp.
struct LazySoftmax : OnlineSoftmax {
  /// Octaves. Probabilities are at most 2^head_room then, which fp16 holds.
  static constexpr float head_room = 8.f;

  /// Algorithm 1, line 18: takes one block of scores into the maxima. Whether a row of the warp asks for a
  /// higher reference.
  template <Maximum how, int count>
  TANDEM_DEVICE bool exceeds(const float (&scores)[count], float scale_log2) {
    const float last_max[2] = {row_max[0], row_max[1]};
    if constexpr (how == Maximum::bits_in_threes) {
      take_bits(scores);
      if (!hw::any_lane(asks(scale_log2) || row_max[0] < 0.f || row_max[1] < 0.f)) return false;
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) row_max[i] = last_max[i];
    }
    take_floats(scores);
    return hw::any_lane(asks(scale_log2));
  }

  /// Line 19, its first half, where it is needed: moves references, and the sums with them, to the maxima.
  TANDEM_DEVICE Rescale raise(float scale_log2) {
    Rescale rescale;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float last = reference[i], wanted = quad_max(row_max[i]) * scale_log2;
      reference[i] = wanted > last + head_room ? wanted : last;
      rescale.factor[i] = hw::exp2(last - reference[i]);
      row_sum[i] *= rescale.factor[i];
    }
    return rescale;
  }

  /// Line 24: as OnlineSoftmax::finish. The output has rounded probabilities. Of a row that sees little but
  /// one key that one's rounding would show, so it is taken into what normalises.
  template <hw::Operand operand>
  TANDEM_DEVICE void finish(float (&lse)[2], float (&normalise)[2], float scale_log2) {
    finish_sums(lse);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float top = hw::exp2(hw::fma(quad_max(row_max[i]), scale_log2, -reference[i]));
      const float rounded = hw::unpack_low<operand>(hw::pack<operand>(top, top));
      normalise[i] = factor_of(row_sum[i] + (rounded - top));
    }
  }

 private:
  TANDEM_DEVICE bool asks(float scale_log2) const {
    return hw::fma(row_max[0], scale_log2, -reference[0]) > head_room ||
           hw::fma(row_max[1], scale_log2, -reference[1]) > head_room;
  }
};

}  // namespace tandem::tile
