// What a quantising kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/hadamard.h"
#include "core/rotary.h"
#include "core/tensor_view.h"
#include "core/tile_scheduler.h"

namespace tandem::quantize {

/// Tokens of a block of threads; also those that share a scale which the kernel finds.
inline constexpr int block_tokens = 128;
/// Columns that a thread has of a row: 16 bytes of 16-bit elements.
inline constexpr int chunk_columns = 8;

struct QuantizeArguments {
  core::TensorView x;
  core::TensorView out;       ///< rows are tokens, or columns of the head
  core::TensorView scale;     ///< its rows are blocks of tokens
  core::Divisor scale_block;  ///< in blocks of threads
  core::Divisor heads, blocks;
  int length, padded;  ///< tokens, and those of a row by column
  bool scale_given;
  core::HadamardView hadamard;
  core::RotaryView rotary;              ///< of outputs by key
  const std::int32_t* first_positions;  ///< of each entry's first token; nullptr: 0
};

}  // namespace tandem::quantize
