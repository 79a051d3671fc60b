// What a quantising kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/hadamard.h"
#include "core/rotary.h"
#include "core/shift.h"
#include "core/tensor_view.h"
#include "core/tile_scheduler.h"
#include "hw/types.h"

namespace tandem::quantize {

/// Tokens that a block of threads has at once; also those that share a scale which the kernel finds.
inline constexpr int block_tokens = 128;
/// What shared memory gives a thread at once: 16 bytes of 16-bit elements. Eight lanes have a panel's row.
inline constexpr int chunk_columns = 8, panel_columns = 64;

struct QuantizeArguments {
  hw::TensorMap x;            ///< boxes of a panel of 128 tokens
  core::TensorView out;       ///< rows are tokens, or columns of the head
  core::TensorView scale;     ///< its rows are blocks of tokens, or tokens
  core::Divisor scale_block;  ///< in blocks of tokens, unless each token has a scale
  core::Divisor heads, blocks;
  int tiles;           ///< blocks of tokens of all entries and heads
  int length, padded;  ///< tokens, and those of a row by column
  bool scale_given;
  float amplitude;  ///< as in core::QuantizeProblem
  core::HadamardView hadamard;
  core::RotaryView rotary;              ///< of outputs by key
  const std::int32_t* first_positions;  ///< of each entry's first token; nullptr: 0
  core::ShiftView shift;                ///< taken off each row
  core::ShiftView k_shift;              ///< of outputs by key
  core::TensorView q_dot_k_shift;       ///< written where there is a k_shift
};

}  // namespace tandem::quantize
