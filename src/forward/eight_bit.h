// What 8-bit operands add to a consumer: scales, and the product of one block by itself.
#pragma once

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
inline constexpr int product_columns = V.transposes() || V.value_dim > 128 ? 64 : V.value_dim;

/// Of those products.
template <ForwardVariant V>
inline constexpr int products = V.value_dim / product_columns<V>;

/// A consumer's part of all that.
template <ForwardVariant V>
struct EightBitState {
  float row_scale[2];                          ///< of the thread's queries
  float key_scale, value_scale;                ///< of the block at work
  const float *keys_of_head, *values_of_head;  ///< all of the tile's
  int batch, kv_head;
  float product[(product_columns<V> + V.rows_of_ones()) / 2];

  /// The tile in `work`; `row`: the thread's upper one.
  TANDEM_DEVICE void begin(const ForwardArguments& args, const Work& work, int row) {
    batch = work.tile.batch;
    kv_head = args.group.divide(work.tile.head).quotient;
    keys_of_head = scales_of_head(args.k_scale, batch, kv_head);
    values_of_head = scales_of_head(args.v_scale, batch, kv_head);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i, last = args.q_len - 1, query = args.packing.query(at);
      const float* of_head = scales_of_head(args.q_scale, batch, args.packing.head(work.tile.head, at));
      row_scale[i] = scale_of(args.q_scale, of_head, query < last ? query : last);
    }
  }

  /// The block of keys from `key` on. Asked for early: these are loads from global memory.
  TANDEM_DEVICE void take_scales(const ForwardArguments& args, int key) {
    constexpr bool kept = V.head_dim <= 128;  // wider heads have no registers for it
    key_scale =
        scale_of(args.k_scale, kept ? keys_of_head : scales_of_head(args.k_scale, batch, kv_head), key);
    value_scale =
        scale_of(args.v_scale, kept ? values_of_head : scales_of_head(args.v_scale, batch, kv_head), key);
  }
};

/// 16-bit operands have none of it.
struct NoEightBitState {
  TANDEM_DEVICE void begin(const ForwardArguments&, const Work&, int) {}
};

template <ForwardVariant V>
using EightBit = std::conditional_t<V.is_8_bit(), EightBitState<V>, NoEightBitState>;

}  // namespace tandem::forward
