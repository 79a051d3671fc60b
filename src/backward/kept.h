// What splits of a group keep of dK and dV (group_splits.h).
#pragma once

namespace tandem::backward {

/// Keys of what a warpgroup keeps of a gradient.
inline constexpr int kept_keys = 64;

/// Columns that a block of the kernel that adds them has.
inline constexpr int kept_columns = 32;

/// Its elements, as the warpgroup's threads hold them as accumulators (place_in_part).
constexpr int kept_elements(int head_dim) { return kept_keys * head_dim; }

}  // namespace tandem::backward
