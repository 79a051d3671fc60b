// What a quantising kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/tile_scheduler.h"

namespace tandem::quantize {

/// Tokens of a block of threads; also those that share a scale which the kernel finds.
inline constexpr int block_tokens = 128;
/// Columns that a thread has of a row: 16 bytes of 16-bit elements.
inline constexpr int chunk_columns = 8;
inline constexpr int max_head_dim = 256;

struct QuantizeArguments {
  core::TensorView x;
  core::TensorView out;       ///< rows are tokens, or columns of the head
  core::TensorView scale;     ///< its rows are blocks of tokens
  core::Divisor scale_block;  ///< in blocks of threads
  core::Divisor heads, blocks;
  int length, padded;  ///< tokens, and those of a row by column
  bool scale_given, hadamard;
  float to_unit;                           ///< 1 / sqrt(d)
  std::uint32_t signs[max_head_dim / 32];  ///< a bit for each column
};

}  // namespace tandem::quantize
