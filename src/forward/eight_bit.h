// What 8-bit operands add to a consumer: scales, and the product of one block by itself.
#pragma once

#include <algorithm>

#include "forward/arguments.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/block_softmax.h"

namespace tandem::forward {

/// The scales of a head; nullptr where there are none. `head`: a query head, or a key/value head, as the
/// view's tensor.
TANDEM_DEVICE const float* scales_of_head(const ScaleView& scales, int batch, int head) {
  if (scales.data == nullptr) return nullptr;
  return scales.data + batch * scales.batch_stride + scales.heads.divide(head).quotient * scales.head_stride;
}
/// Of a token of that head.
TANDEM_DEVICE float scale_of(const ScaleView& scales, const float* of_head, int token) {
  if (of_head == nullptr) return 1.f;
  return hw::load_global(of_head + scales.block.divide(token).quotient * scales.block_stride);
}

/// Columns of the output that one product has: all, or as many as fit in registers beside the output. Of
/// codes the last product has the rows of ones behind its columns.
template <ForwardVariant V>
inline constexpr int product_columns = std::min(V.value_dim, V.transposes() ? 64 : 128);

/// Of those products.
template <ForwardVariant V>
inline constexpr int products = V.value_dim / product_columns<V>;

/// A consumer's part of all that.
template <ForwardVariant V>
struct EightBitState {
  float row_scale[2];  ///< of the thread's queries
  BlockScales block;   ///< of the block at work
  float product[(product_columns<V> + V.rows_of_ones()) / 2];

  /// The tile in `work`; `row`: the thread's upper one.
  TANDEM_DEVICE void begin(const ForwardArguments& args, const Work& work, int row) {
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i, last = args.q_len - 1, query = args.packing.query(at);
      const float* of_head =
          scales_of_head(args.q_scale, work.tile.batch, args.packing.head(work.tile.head, at));
      row_scale[i] = scale_of(args.q_scale, of_head, query < last ? query : last);
    }
  }
};

/// 16-bit operands have none of it.
struct NoEightBitState {
  TANDEM_DEVICE void begin(const ForwardArguments&, const Work&, int) {}
};

template <ForwardVariant V>
using EightBit = std::conditional_t<V.is_8_bit(), EightBitState<V>, NoEightBitState>;

}  // namespace tandem::forward
