// What a merge kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/tile_scheduler.h"

namespace tandem::merge {

inline constexpr int threads = 256;
/// Columns that a thread merges at once: 16 bytes of a 16-bit row, 32 of an fp32 one.
inline constexpr int chunk_columns = 8;

/// Parts of a tensor, or a tensor that is its one part.
struct PartsView : core::TensorView {
  std::int64_t part_stride;
};

struct MergeArguments {
  PartsView o_parts, lse_parts;
  PartsView o;
  PartsView lse;            ///< data == nullptr: not wanted
  int parts, rows, chunks;  ///< chunks of a row
  int lanes_shift;          ///< log2 of the threads of a row, at most a warp
  core::Divisor heads, length;
};

}  // namespace tandem::merge
