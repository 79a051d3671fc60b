// The quantising kernels that are built.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

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
  /// Whether WGMMA multiplies rows by the Hadamard matrix, as they come from memory; only by key, not turned.
  bool products = false;
  bool row_scales = false;  ///< the best one for each token (core::scale_choice); of e4m3 by key

  /// A thread's of a block of tokens, of one row or of several. Turning takes registers, of which fewer
  /// threads have more.
  constexpr int thread_chunks() const { return turns || (!by_column && head_dim == 128) ? 8 : 4; }
  constexpr int threads() const {
    constexpr int warpgroup_rows = 64;
    return products ? block_tokens / warpgroup_rows * hw::warpgroup_size
                    : block_tokens * head_dim / (thread_chunks() * chunk_columns);
  }
  /// Panels of 64 columns, of whose rows eight neighbouring lanes have a chunk each.
  constexpr int panels() const { return head_dim / panel_columns; }
  constexpr int rows_of_thread() const { return thread_chunks() / panels(); }
  /// Blocks of threads that a multiprocessor holds: of all of its registers a thread has 16 for each chunk.
  /// By products it has 32 sums for each panel, and others beside.
  constexpr int resident() const {
    if (products) return head_dim == 64 ? 3 : head_dim == 128 ? 2 : 1;
    return 4096 / (threads() * thread_chunks());
  }
  /// Blocks of tokens on their way into shared memory, or there.
  constexpr int stages() const { return by_column ? 2 : 3; }

  friend constexpr bool operator==(const QuantizeVariant&, const QuantizeVariant&) = default;
};

constexpr auto all_variants() {
  std::array<QuantizeVariant, 66> all{};
  std::size_t i = 0;
  for (const hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const bool by_column : {false, true}) all[i++] = {operand, head_dim, by_column};
      all[i++] = {operand, head_dim, false, hw::Operand::int8};
      all[i++] = {operand, head_dim, true, hw::Operand::e4m3, 2};
      for (const hw::Operand output : {hw::Operand::e4m3, hw::Operand::int8}) {
        all[i++] = {
            .operand = operand, .head_dim = head_dim, .by_column = false, .output = output, .turns = true};
        all[i++] = {
            .operand = operand, .head_dim = head_dim, .by_column = false, .output = output, .products = true};
      }
      for (const auto& [turns, products] : {std::pair{false, false}, {true, false}, {false, true}})
        all[i++] = {.operand = operand,
                    .head_dim = head_dim,
                    .by_column = false,
                    .turns = turns,
                    .products = products,
                    .row_scales = true};
    }
  }
  return all;
}

}  // namespace tandem::quantize
