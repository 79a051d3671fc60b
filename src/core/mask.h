// Mask: which keys a query sees, and which key blocks a tile of queries has to walk.
//
// Everything is constexpr and plain, so that the CPU backend, the kernels and the tests share it.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Half-open range of keys.
struct KeyRange {
  std::int64_t begin, end;
};

/// A band around the bottom-right diagonal: query i, at position p = i + (sk - sq), sees keys in [p - left, p
/// + right].
struct Mask {
  /// Larger than any sequence, small enough that sums of a few never overflow.
  static constexpr std::int64_t unlimited = std::int64_t{1} << 60;

  std::int64_t left = unlimited, right = unlimited;

  static constexpr Mask full() { return {}; }
  static constexpr Mask causal() { return {unlimited, 0}; }
  constexpr bool is_full() const { return left == unlimited && right == unlimited; }

  /// Keys that `query` sees; empty as begin == end.
  constexpr KeyRange visible_keys(std::int64_t query, std::int64_t q_len, std::int64_t k_len) const {
    const std::int64_t position = query + k_len - q_len;
    const std::int64_t first = position - left, past = position + right + 1;
    const std::int64_t begin = first < 0 ? 0 : (first > k_len ? k_len : first);
    const std::int64_t end = past > k_len ? k_len : (past < begin ? begin : past);
    return {begin, end};
  }
};

/// The key blocks that one tile of queries walks, in order: masked, full, masked.
/// [begin, full_begin) and [full_end, end) need a per-element mask; every query of the tile sees all of
/// [full_begin, full_end). Blocks outside [begin, end) are hidden from all of them.
struct BlockRanges {
  int begin, full_begin, full_end, end;
};

/// Block ranges of the queries [q_begin, q_end), which is not empty, for key blocks of `block_n` keys.
constexpr BlockRanges block_ranges(const Mask& mask, std::int64_t q_begin, std::int64_t q_end,
                                   std::int64_t q_len, std::int64_t k_len, int block_n) {
  // Both ends of the visible range grow with the query, so the first and the last query bound the tile.
  const KeyRange first = mask.visible_keys(q_begin, q_len, k_len);
  const KeyRange last = mask.visible_keys(q_end - 1, q_len, k_len);
  if (first.begin >= last.end) return {0, 0, 0, 0};
  const int begin = static_cast<int>(first.begin / block_n);
  const int end = static_cast<int>((last.end + block_n - 1) / block_n);
  int full_begin = static_cast<int>((last.begin + block_n - 1) / block_n);
  int full_end = static_cast<int>(first.end / block_n);
  if (full_begin > end) full_begin = end;
  if (full_end < full_begin) full_end = full_begin;
  return {begin, full_begin, full_end, end};
}

}  // namespace tandem::core
