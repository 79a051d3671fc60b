// Masking of a block of scores in registers.
#pragma once

#include "core/mask.h"
#include "forward/arguments.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Keys that the thread's two rows see.
struct RowLimits {
  int begin[2], end[2];

  /// `row`: the thread's upper one; the lower one is 8 further down.
  template <ForwardVariant V>
  TANDEM_DEVICE static RowLimits of(const ForwardArguments& args, const MaskLengths& lengths, int row) {
    RowLimits limits;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto keys =
          mask_of<V>(args).visible_keys(args.packing.query(row + 8 * i), lengths.mask_q_len, lengths.k_len);
      limits.begin[i] = keys.begin;
      limits.end[i] = keys.end;
    }
    return limits;
  }
};

/// Sets the scores of keys that a row does not see to -inf. `first_key`: of the block.
template <ForwardVariant V>
TANDEM_DEVICE void mask_scores(float (&scores)[V.block_n / 2], const RowLimits& limits, int first_key) {
  const int own_column = first_key + 2 * static_cast<int>(hw::lane_index() % 4);
  TANDEM_UNROLL
  for (int j = 0; j < V.block_n / 2; ++j) {
    const int i = tile::row_of_accumulator(j), column = tile::column_of_accumulator(j);
    bool visible = column < limits.end[i] - own_column;
    if constexpr (V.mask == MaskKind::band) visible = visible && column >= limits.begin[i] - own_column;
    if (!visible) scores[j] = tile::minus_infinity;
  }
}

/// The same of scores in fp16, two a word.
template <ForwardVariant V>
TANDEM_DEVICE void mask_fp16_scores(std::uint32_t (&scores)[V.block_n / 4], const RowLimits& limits,
                                    int first_key) {
  constexpr std::uint32_t minus_infinity = 0xfc00;
  const int own_column = first_key + 2 * static_cast<int>(hw::lane_index() % 4);
  TANDEM_UNROLL
  for (int j = 0; j < V.block_n / 4; ++j) {
    const int i = j % 2;
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int column = 8 * (j / 2) + half, shift = 16 * half;
      bool visible = column < limits.end[i] - own_column;
      if constexpr (V.mask == MaskKind::band) visible = visible && column >= limits.begin[i] - own_column;
      if (!visible) scores[j] = (scores[j] & ~(0xffffu << shift)) | minus_infinity << shift;
    }
  }
}

}  // namespace tandem::forward
