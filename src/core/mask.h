// Mask: which keys a query sees, and which key blocks a tile of queries has to visit.
//
// Everything is constexpr and plain, so that the CPU backend, the kernels and the tests share it. Kernels use
// the 32-bit instance, for which lengths stay below `BasicMask<std::int32_t>::max_length`.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Half-open range of keys.
template <typename Int>
struct BasicKeyRange {
  Int begin, end;
};

/// A band around the bottom-right diagonal: query i, at position p = i + (sk - sq), sees keys in [p - left, p
/// + right].
template <typename Int>
struct BasicMask {
  /// Larger than any sequence, small enough that sums of a few never overflow.
  static constexpr Int unlimited = Int{1} << (sizeof(Int) * 8 - 3);
  /// Lengths that sums with `unlimited` leave room for.
  static constexpr Int max_length = unlimited / 2;

  Int left = unlimited, right = unlimited;

  static constexpr BasicMask full() { return {}; }
  static constexpr BasicMask causal() { return {unlimited, 0}; }
  constexpr bool is_full() const { return left == unlimited && right == unlimited; }

  /// The mask with queries and keys exchanged: transposed().visible_keys(key, k_len, q_len) are the queries
  /// that see `key`.
  constexpr BasicMask transposed() const { return {right, left}; }

  /// The same mask for lengths that are within `Narrow`'s limits.
  template <typename Narrow>
  constexpr BasicMask<Narrow> narrowed() const {
    constexpr Narrow limit = BasicMask<Narrow>::unlimited;
    return {left < limit ? static_cast<Narrow>(left) : limit,
            right < limit ? static_cast<Narrow>(right) : limit};
  }

  /// Keys that `query` sees; empty as begin == end.
  constexpr BasicKeyRange<Int> visible_keys(Int query, Int q_len, Int k_len) const {
    const Int position = query + k_len - q_len;
    const Int first = position - left, past = position + right + 1;
    const Int begin = first < 0 ? 0 : (first > k_len ? k_len : first);
    const Int end = past > k_len ? k_len : (past < begin ? begin : past);
    return {begin, end};
  }
};

/// A mask without a left limit, of lengths as kernels have them: all queries see the first keys.
struct PrefixMask {
  std::int32_t right;

  constexpr BasicKeyRange<std::int32_t> visible_keys(std::int32_t query, std::int32_t q_len,
                                                     std::int32_t k_len) const {
    const std::int32_t past = query + k_len - q_len + right + 1, end = past > k_len ? k_len : past;
    return {0, end < 0 ? 0 : end};
  }
};

/// Of keys that a query at `position` sees by a band, those of the chunk that begins at `first`. Before the
/// first key there are no chunks: keys before `negative_past` count there.
template <typename Int>
constexpr BasicKeyRange<Int> keys_of_chunk(const BasicKeyRange<Int>& band, Int position, Int first, Int chunk,
                                           Int negative_past) {
  const Int from = position < 0 ? 0 : first, past = position < 0 ? negative_past : first + chunk;
  const Int end = band.end < past ? band.end : past, begin = band.begin > from ? band.begin : from;
  return {begin < end ? begin : end, end};
}

using KeyRange = BasicKeyRange<std::int64_t>;

/// A band, as calls have it, of which a query sees only the keys in its own position's chunk, where there are
/// chunks. Kernels that know these have them beside the band (forward/work.h).
struct Mask : BasicMask<std::int64_t> {
  std::int64_t chunk = 0;  ///< positions: chunk i has i * chunk ... i * chunk + chunk - 1; 0: no chunks

  static constexpr Mask full() { return {}; }
  static constexpr Mask causal() { return {unlimited, 0}; }
  constexpr bool is_full() const { return BasicMask::is_full() && chunk == 0; }

  constexpr KeyRange visible_keys(std::int64_t query, std::int64_t q_len, std::int64_t k_len) const {
    const KeyRange band = BasicMask::visible_keys(query, q_len, k_len);
    if (chunk == 0) return band;
    const std::int64_t position = query + k_len - q_len;
    return keys_of_chunk<std::int64_t>(band, position, position / chunk * chunk, chunk, 0);
  }
};

/// Blocks in which every pair counts, and blocks that need the mask: the two kinds of a peeled loop.
enum class BlockKind { full, masked };

/// The key blocks that one tile of queries visits, in order: masked, full, masked.
/// [begin, full_begin) and [full_end, end) need a per-element mask; every query of the tile sees all of
/// [full_begin, full_end). Blocks outside [begin, end) are hidden from all of them.
template <typename Int>
struct BasicBlockRanges {
  Int begin, full_begin, full_end, end;
};
using BlockRanges = BasicBlockRanges<std::int32_t>;

/// Block ranges of the queries [q_begin, q_end), which is not empty, for key blocks of `block_n` keys.
template <typename Mask, typename Int>
constexpr BasicBlockRanges<Int> block_ranges(const Mask& mask, Int q_begin, Int q_end, Int q_len, Int k_len,
                                             int block_n) {
  // Both ends of the visible range grow with the query, so the first and the last query bound the tile.
  const BasicKeyRange<Int> first = mask.visible_keys(q_begin, q_len, k_len);
  const BasicKeyRange<Int> last = mask.visible_keys(q_end - 1, q_len, k_len);
  const Int begin = first.begin / block_n;
  const Int end = (last.end + block_n - 1) / block_n;
  Int full_begin = (last.begin + block_n - 1) / block_n;
  Int full_end = first.end / block_n;
  if (full_begin > end) full_begin = end;
  if (full_end < full_begin) full_end = full_begin;
  // Not a branch above: this stands among the instructions of kernels.
  using Ranges = BasicBlockRanges<Int>;
  return first.begin < last.end ? Ranges{begin, full_begin, full_end, end} : Ranges{0, 0, 0, 0};
}

enum class Direction { first_key_first, last_key_first };

/// In which order a tile visits its key blocks: position i of `count` is block first + i * step. Positions
/// outside [full_begin, full_end) need a per-element mask.
struct BlockLoop {
  int first, step, full_begin, full_end, count;

  constexpr int block(int i) const { return first + i * step; }
};

/// How many blocks a tile visits before and after those of some of its rows.
struct BlocksAside {
  int before, after;
};

constexpr BlocksAside aside(const BlockRanges& tile, const BlockRanges& own, Direction direction) {
  if (own.begin == own.end) return {tile.end - tile.begin, 0};
  const int lower = own.begin - tile.begin, upper = tile.end - own.end;
  return direction == Direction::first_key_first ? BlocksAside{lower, upper} : BlocksAside{upper, lower};
}

constexpr BlockLoop loop_over(const BlockRanges& blocks, Direction direction) {
  const auto [begin, full_begin, full_end, end] = blocks;
  if (direction == Direction::first_key_first) {
    return {begin, 1, full_begin - begin, full_end - begin, end - begin};
  }
  return {end - 1, -1, end - full_end, end - full_begin, end - begin};
}

}  // namespace tandem::core
