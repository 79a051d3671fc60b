// Softmax of 8-bit products whose scores come in fp16: BlockSoftmax's codes, two at a time.
//
// A score is half a register. A code takes half a difference to the row's maximum, half an fma that clamps,
// half an fma whose sum has the code in its low byte, and a quarter of a byte selection.
#pragma once

#include <limits>

#include "hw/hw.h"
#include "tile/block_softmax.h"
#include "tile/warp_reduce.h"

namespace tandem::tile {

/// Running statistics of the thread's two rows, as BlockSoftmax's.
struct Fp16Softmax : BlockStatistics {
  /// Codes are most_code times a number that is clamped to 0 ... 1. In fp16 integers up to 2048 are exact, so
  /// that code_base + code, rounded, has the code in its low byte.
  static constexpr float most_code = 126, code_base = 1024;
  /// Of the largest probability, whose code is 120.
  static constexpr float top_of_line = (codes_per_octave * log2_amplitude + offset_of_codes) / most_code;
  /// Of fp16.
  static constexpr float most_slope = 60000;

  float row_max[2];  ///< of the last block only
  float unit[2];     ///< of the last block's scores, for exponents of two

  /// Algorithm 1, line 18, for one block alone.
  template <int count>
  TANDEM_DEVICE void update_row_max(const std::uint32_t (&scores)[count]) {
    std::uint32_t top[2] = {scores[0], scores[1]};
    TANDEM_UNROLL
    for (int j = 2; j < count; j += 4) {
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i)
        top[i] = hw::max_of_int16(top[i], scores[j + i], scores[j + 2 < count ? j + 2 + i : j + i]);
    }
    std::uint32_t both =
        quad_max(top, [](std::uint32_t a, std::uint32_t b) { return hw::max_of_int16(a, b, b); });
    if (hw::any_lane((both & 0x80008000u) != 0)) {
      TANDEM_UNROLL
      for (int i = 0; i < 2; ++i) top[i] = scores[i];
      TANDEM_UNROLL
      for (int j = 2; j < count; ++j) top[j % 2] = hw::max_or_nan_fp16(top[j % 2], scores[j]);
      both = quad_max(top, [](std::uint32_t a, std::uint32_t b) { return hw::max_or_nan_fp16(a, b); });
    }
    row_max[0] = hw::unpack_low<hw::Operand::fp16>(both);
    row_max[1] = hw::unpack_high<hw::Operand::fp16>(both);
  }

  /// Line 19: turns the block's scores into codes, in the low bytes of their halves; as
  /// BlockSoftmax::exponentiate. The maximum comes off first, which is exact for all scores that count beside
  /// it: fp16 would be too coarse for the line's value at score 0.
  template <bool masked, int count, int columns>
  TANDEM_DEVICE void exponentiate(std::uint32_t (&scores)[count], float (&output)[columns],
                                  float value_scale) {
    std::uint32_t slope[2], less[2];
    float offset[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool none = masked && row_max[i] == -infinity;  // all codes are 0 then
      const float per_score = codes_per_octave / most_code * unit[i];
      slope[i] = twice(per_score < most_slope ? per_score : most_slope);
      less[i] = twice(none ? 0.f : -row_max[i]);
      offset[i] = none ? infinity : hw::fma(-unit[i], row_max[i], log2_amplitude);
    }
    weigh<masked>(offset, output, value_scale);
    const std::uint32_t one = twice(1.f), top = twice(top_of_line), to_codes = twice(most_code),
                        base = twice(code_base);
    TANDEM_UNROLL
    for (int j = 0; j < count; ++j) {
      const std::uint32_t below = hw::fma_fp16(scores[j], one, less[j % 2]);
      scores[j] = hw::fma_fp16(hw::fma_fp16_saturated(below, slope[j % 2], top), to_codes, base);
    }
  }

 private:
  TANDEM_DEVICE static std::uint32_t twice(float x) { return hw::pack<hw::Operand::fp16>(x, x); }
  /// The maxima of the thread's two rows over the four lanes that share them. Both rows are in one word, so
  /// that two shuffles do.
  template <typename Max>
  TANDEM_DEVICE static std::uint32_t quad_max(const std::uint32_t (&top)[2], const Max& max) {
    return warp_reduce<4>(
        max(hw::select_bytes<0x5410>(top[0], top[1]), hw::select_bytes<0x7632>(top[0], top[1])), max);
  }
};

}  // namespace tandem::tile
