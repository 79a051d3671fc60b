// Where a tile of tokens lies, and how its elements become 8 bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/shared_storage.h"

namespace tandem::quantize {

/// Where a tile lies: 128 tokens of a head.
struct Place {
  int batch, block, head;

  TANDEM_DEVICE Place(const QuantizeArguments& args, int tile) {
    const auto [above, own_head] = args.heads.divide(tile);
    const auto [own_batch, own_block] = args.blocks.divide(above);
    batch = own_batch, block = own_block, head = own_head;
  }
  TANDEM_DEVICE int first() const { return block * block_tokens; }
  TANDEM_DEVICE float* scale(const QuantizeArguments& args) const {
    return args.scale.row<float>(batch, args.scale_block.divide(block).quotient, head);
  }
  /// Where each token of the tile has its own.
  TANDEM_DEVICE float* scale_of_row(const QuantizeArguments& args, int row) const {
    return args.scale.row<float>(batch, first() + row, head);
  }
  TANDEM_DEVICE std::uint8_t* out(const QuantizeArguments& args) const {
    return args.out.row<std::uint8_t>(batch, 0, head);
  }
};

/// Raises `largest` to the largest magnitude of an array, of whatever dimensions.
template <typename Part>
TANDEM_DEVICE void raise_to_magnitude(float& largest, const Part& part) {
  if constexpr (std::is_array_v<Part>) {
    TANDEM_UNROLL
    for (const auto& inner : part) raise_to_magnitude(largest, inner);
  } else {
    largest = hw::max(largest, std::fabs(part));
  }
}
/// The largest magnitude of the thread's numbers.
template <typename Numbers>
TANDEM_DEVICE float largest_magnitude(const Numbers& own) {
  float largest = 0;
  raise_to_magnitude(largest, own);
  return largest;
}

/// Four floats times `inverse` as the output has them.
template <QuantizeVariant V>
TANDEM_DEVICE std::uint32_t pack(float x0, float x1, float x2, float x3, float inverse) {
  x0 *= inverse, x1 *= inverse, x2 *= inverse, x3 *= inverse;
  return V.output == hw::Operand::int8 ? hw::pack_int8(x0, x1, x2, x3) : hw::pack_e4m3(x0, x1, x2, x3);
}
/// A chunk of them.
template <QuantizeVariant V>
TANDEM_DEVICE Pair pack(const float (&x)[chunk_columns], float inverse) {
  return {{pack<V>(x[0], x[1], x[2], x[3], inverse), pack<V>(x[4], x[5], x[6], x[7], inverse)}};
}

}  // namespace tandem::quantize
