// The quantising kernels that are built.
#pragma once

#include <array>
#include <cstddef>

#include "hw/types.h"
#include "quantize/arguments.h"

namespace tandem::quantize {

struct QuantizeVariant {
  hw::Operand operand;  ///< of x
  int head_dim;
  bool by_column;
  hw::Operand output = hw::Operand::e4m3;  ///< or int8, which lies by key
  int terms = 1;                           ///< two only by column
  bool turns = false;                      ///< by rotary embedding; only by key

  /// A row's chunks fall to neighbouring lanes, at most a warp.
  constexpr int lanes() const { return head_dim / chunk_columns; }
  /// Each thread has a chunk of so many rows, as its registers allow.
  constexpr int rows_of_thread() const {
    const bool few = head_dim == 256 ? by_column : turns;
    return few ? 4 : 8;
  }
  constexpr int rows_at_once() const { return block_tokens / rows_of_thread(); }
  constexpr int threads() const { return rows_at_once() * lanes(); }

  friend constexpr bool operator==(const QuantizeVariant&, const QuantizeVariant&) = default;
};

constexpr auto all_variants() {
  std::array<QuantizeVariant, 36> all{};
  std::size_t i = 0;
  for (const hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const bool by_column : {false, true}) all[i++] = {operand, head_dim, by_column};
      all[i++] = {operand, head_dim, false, hw::Operand::int8};
      all[i++] = {operand, head_dim, true, hw::Operand::e4m3, 2};
      for (const hw::Operand output : {hw::Operand::e4m3, hw::Operand::int8})
        all[i++] = {operand, head_dim, false, output, 1, true};
    }
  }
  return all;
}

}  // namespace tandem::quantize
