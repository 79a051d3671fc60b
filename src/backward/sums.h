// The fp32 sums of dQ: where each part lies.
//
// A tile of keys adds its part of 64 queries x 64 columns at a time, in the order in which a warpgroup's
// threads hold it as accumulators: four of them after four of them, thread after thread. So its way through
// shared memory has no bank conflicts, and what lies where does not matter to the adds.
#pragma once

#include <cstdint>

#include "hw/types.h"

namespace tandem::backward {

inline constexpr int part_rows = 64, part_columns = 64;
inline constexpr int part_elements = part_rows * part_columns;
/// A thread's accumulators of a part.
inline constexpr int part_accumulators = part_elements / hw::warpgroup_size;
/// Rows of 32 floats that a part has as a box of TMA.
inline constexpr int part_box_columns = 32, part_box_rows = part_elements / part_box_columns;

/// Parts of 64 queries; those of one head follow one another, those of 64 queries too.
constexpr int parts_of_rows(int head_dim) { return (head_dim + part_columns - 1) / part_columns; }

/// Number of the part of queries [64 * row_block, ...) and columns [64 * panel, ...) of a head, the `head`th
/// of the ring.
constexpr int part_number(int head, int row_blocks, int row_block, int head_dim, int panel) {
  return (head * row_blocks + row_block) * parts_of_rows(head_dim) + panel;
}

/// Of a thread's accumulators 4 * quad ... 4 * quad + 3: the first's place in the part.
constexpr int place_in_part(int thread, int quad) { return 4 * (quad * hw::warpgroup_size + thread); }

}  // namespace tandem::backward
