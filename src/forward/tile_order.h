// In which order the tile scheduler of variable lengths lists tiles: head after head, so that keys stay in
// L2, and the last ones longest first, so that blocks end together.
//
// All tiles of all sequences and heads stand in one row: sequences in classes of length, the long ones first;
// of a sequence head after head; of a head the longest tile first. The last tiles of the row, as many as fill
// a few rounds of the grid, are sorted by length. Those before them are not: neighbours of one length would
// all load their queries at the same time.
#pragma once

#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/sequence.h"

namespace tandem::forward {

/// Rounds of the grid, the last ones, whose tiles are sorted.
inline constexpr int sorted_rounds = 2;

/// What the tiles of all sequences have in common.
struct TileSize {
  core::Divisor queries;  ///< of a tile
  int seen_ahead;         ///< keys behind the one that a query is aligned with that it sees
  int most_keys;          ///< that a tile sees where there is a window, or chunks

  TANDEM_DEVICE static TileSize of(const ListArguments& args) {
    const core::BasicMask<std::int32_t> mask = args.forward.mask;
    const int window = mask.left + mask.right, chunk = args.forward.chunks.size.value();
    return {args.tile_queries, mask.right + 1, (window < chunk ? window : chunk) + args.tile_queries.value()};
  }
};

/// The tiles of one sequence and head, and how far into the keys each of them reaches. Tile number 0 is the
/// longest: that of the last queries.
struct SequenceTiles {
  int q_len, k_len;
  int count;
  int shift;  ///< a tile whose last query is q sees keys up to q + shift

  TANDEM_DEVICE static SequenceTiles of(const TileSize& size, const Sequence& s) {
    return {s.q_len, s.k_len, size.queries.divide(s.q_len + size.queries.value() - 1).quotient,
            s.k_len - s.mask_q_len + size.seen_ahead};
  }
  /// Of tile number `number`: what it reads, as good as. Falls with the number.
  TANDEM_DEVICE int length(const TileSize& size, int number) const {
    const int past = (count - number) * size.queries.value(), last = (past < q_len ? past : q_len) - 1;
    return core::clamp(core::clamp(last + shift, 0, k_len), 0, size.most_keys);
  }
  /// How many tiles are longer than `length`, which is not negative.
  TANDEM_DEVICE int longer_than(const TileSize& size, int length) const {
    if (length >= k_len || length >= size.most_keys || q_len - 1 + shift <= length) return 0;
    // The first tile whose last query sees more: (m_block + 1) * tile_queries - 1 + shift > length.
    const int missing = length + 1 - shift;
    return count - (missing <= 0 ? 0 : size.queries.divide(missing).quotient);
  }
};

/// Lengths that count as one when tiles are ranked: those of neighbours that share keys, so that they run at
/// the same time, although each is a few keys longer than the next.
struct LengthRange {
  int least, most;

  TANDEM_DEVICE static LengthRange around(int length) {
    int step = 1;
    while (length >= 2 * steps_of_octave * step) step *= 2;
    const int least = length & ~(step - 1);
    return {least, least + step - 1};
  }
  static constexpr int steps_of_octave = 64;
};

/// Classes of sequences: 0 has those of 16k keys and more, each next one those of half as many.
inline constexpr int length_classes = 6;
TANDEM_DEVICE int class_of(const TileSize& size, const SequenceTiles& tiles) {
  int of_length = length_classes - 1;
  for (int least = 1024; of_length > 0 && tiles.length(size, 0) >= least; least *= 2) --of_length;
  return of_length;
}

/// A piece of the row of all tiles: part of the tiles of one sequence. Places count from the sequence's
/// first.
struct RowPiece {
  int begin, end;

  /// Those of the places [from, past) that are among `tiles` tiles from `start` on.
  TANDEM_DEVICE static RowPiece of(int from, int past, int start, int tiles) {
    return {core::clamp(from - start, 0, tiles), core::clamp(past - start, 0, tiles)};
  }
  /// How many of its tiles are among the first `longer` of their head. Heads have `count` tiles each.
  TANDEM_DEVICE int among_first(int longer, int count) const {
    if (begin >= end) return 0;
    const int first_head = begin / count, last_head = (end - 1) / count;
    const int from = begin - first_head * count, to = end - last_head * count;
    const int before_end = longer < to ? longer : to, before_begin = longer < from ? longer : from;
    return (last_head - first_head) * longer + before_end - before_begin;
  }
};

/// A sequence in the row of all tiles.
struct SequenceInRow {
  SequenceTiles tiles;
  int start;  ///< tiles of one head before its own
};

/// A tile of one sequence: of every head the same one.
struct TileInRow {
  TileSize size;
  SequenceInRow sequence;
  int number;
  int packs;         ///< heads
  LengthRange like;  ///< its length, and those that count as the same

  /// How many tiles of a head are longer than this one, or at least as long.
  TANDEM_DEVICE int longer(const SequenceTiles& of_head, bool or_equal) const {
    if (!or_equal) return of_head.longer_than(size, like.most);
    return like.least == 0 ? of_head.count : of_head.longer_than(size, like.least - 1);
  }
  TANDEM_DEVICE int place(int pack) const {
    return sequence.start * packs + pack * sequence.tiles.count + number;
  }

  /// How many tiles of another sequence come before it among the places [from, past), where they are sorted.
  /// Of equal lengths the first in the row.
  TANDEM_DEVICE int before_of(const SequenceInRow& other, int from, int past) const {
    const int count = other.tiles.count;
    const auto piece = RowPiece::of(from, past, other.start * packs, count * packs);
    if (piece.begin >= piece.end) return 0;
    return piece.among_first(longer(other.tiles, other.start < sequence.start), count);
  }
  /// How many of its own sequence do.
  TANDEM_DEVICE int own_before(int pack, int from, int past) const {
    const SequenceTiles& tiles = sequence.tiles;
    const auto piece = RowPiece::of(from, past, sequence.start * packs, tiles.count * packs);
    const RowPiece earlier{piece.begin, pack * tiles.count + number};
    const int strictly = longer(tiles, false), equal = longer(tiles, true);
    return piece.among_first(strictly, tiles.count) + earlier.among_first(equal, tiles.count) -
           earlier.among_first(strictly, tiles.count);
  }
};

}  // namespace tandem::forward
