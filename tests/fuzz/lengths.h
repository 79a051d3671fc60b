// Lengths of sequences, as the fuzzers of calls that have some draw and read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/fuzz/arena.h"

namespace tandem::fuzz {

using Table = std::vector<std::int32_t>;

/// Lengths one behind the other, the first at least `first`; returns their end.
inline std::int64_t make_packed(Table& cu_seqlens, std::int64_t batch, Draws& draws, std::int64_t most,
                                std::int64_t first = 0) {
  std::int64_t end = draws.below(4) == 0 ? 2 : 0;  // rows that belong to nobody
  for (std::int64_t i = 0; i <= batch; ++i) {
    cu_seqlens.push_back(static_cast<std::int32_t>(end));
    if (i == 0 && batch > 0) end += first;
    if (i < batch) end += draws.below(5) == 0 ? draws.between(0, most) : draws.between(0, 6);
  }
  return end + static_cast<std::int64_t>(draws.below(3));
}

/// Rows [first, first + count) of an entry.
struct Rows {
  std::int64_t entry, first, count;
};

inline std::int64_t bounded(std::int64_t length, std::int64_t bound) {
  return bound == 0 ? length : std::min(length, bound);
}

/// Those of a sequence in tensors of which each has an entry, or in packed ones.
inline Rows rows_of_sequence(const std::int32_t* cu_seqlens, const tandem_tensor& t, std::int64_t i) {
  if (cu_seqlens == nullptr) return {i, 0, t.shape[1]};
  return {0, cu_seqlens[i], cu_seqlens[i + 1] - cu_seqlens[i]};
}

/// Whether a table that is given has as many numbers as are read.
inline bool fits(const std::int32_t* given, const Table& own, Wide needed) {
  return given == nullptr || needed <= static_cast<Wide>(own.size());
}

}  // namespace tandem::fuzz
