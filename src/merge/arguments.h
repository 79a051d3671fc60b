// What a merge kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/tile_scheduler.h"

namespace tandem::merge {

inline constexpr int threads = 256;
/// Columns that a thread merges at once: 16 bytes of a 16-bit row, 32 of an fp32 one.
inline constexpr int chunk_columns = 8;

/// A tensor that is accessed with ordinary loads and stores; strides in elements.
struct RowView {
  void* data;
  std::int64_t batch_stride, row_stride, head_stride, part_stride;

  /// Offset of a row's first element, in part 0.
  constexpr std::int64_t at(int batch, int row, int head) const {
    return batch * batch_stride + row * row_stride + head * head_stride;
  }
};

struct MergeArguments {
  RowView o_parts, lse_parts;
  RowView o;
  RowView lse;              ///< data == nullptr: not wanted
  int parts, rows, chunks;  ///< chunks of a row
  int lanes_shift;          ///< log2 of the threads of a row, at most a warp
  core::Divisor heads, length;
};

}  // namespace tandem::merge
