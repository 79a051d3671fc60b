// What the backward knows of each query besides q and dO: L and D, as the preprocessing leaves them.
#pragma once

#include <cstdint>

namespace tandem::backward {

/// Queries whose statistics are permuted together.
inline constexpr int statistics_group = 16;

/// A row of scores is a key here and its columns are queries, of which each thread holds two of every eight.
/// The statistics lie so that a thread finds those of its four of every sixteen queries side by side: place
/// of query `query` in its group.
constexpr int place_of_query(int query) { return query % 8 / 2 * 4 + query / 8 * 2 + query % 2; }

/// And among the statistics of all groups. The places of two rows without a common bit add up to that of the
/// sum.
constexpr int place_of_row(int row) {
  return row / statistics_group * statistics_group + place_of_query(row % statistics_group);
}

/// Lengths up to which statistics and sums are padded.
inline constexpr int query_padding = 128;

/// Of padded queries of all heads and batch entries, each head's permuted in groups.
struct Statistics {
  float* lse_log2;  ///< L * log2(e); +inf for queries that have no part in the result, so that P is 0
  float* delta;     ///< D: rowsum(dO o O) - dL; 0 for those
};

}  // namespace tandem::backward
