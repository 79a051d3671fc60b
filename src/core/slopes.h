// Slopes: scores that fall with the distance of key and query (ALiBi: Press et al., arXiv 2108.12409).
#pragma once

#include <cstdint>

#include "core/tensor_list.h"

namespace tandem::core {

/// The score of a query at position p and key j is slope * |p - j| less; after scale and cap, before the
/// mask.
struct Slopes {
  const float* data = nullptr;  ///< of each query head, in the memory of the backend; nullptr: none
  std::int64_t stride = 0;      ///< from sequence to sequence; 0: all have the same

  bool given() const { return data != nullptr; }
  /// Those of one sequence, as a call of its own has them.
  Slopes of_sequence(std::int64_t index) const { return {given() ? data + index * stride : nullptr, 0}; }
  float of(std::int64_t sequence, std::int64_t head) const { return data[sequence * stride + head]; }
};

inline void add_slopes(TensorList& list, const Slopes& slopes, std::int64_t sequences, std::int64_t heads) {
  if (!slopes.given()) return;
  const std::int64_t rows = slopes.stride == 0 ? 1 : sequences;
  list.add_array("alibi_slopes", Role::input,
                 Region::of(slopes.data, sizeof *slopes.data, rows, heads, slopes.stride));
}

}  // namespace tandem::core
