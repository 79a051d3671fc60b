// In which order the tile scheduler of variable lengths lists tiles: in sections that stay in L2.
//
// All tiles of all sequences and heads stand in one row: sequences in classes of length, the long ones first;
// of a sequence head after head; of a head the longest tile first. The row is cut into sections of so many
// tiles as fill a few rounds of the grid, so that the keys and values that a section reads stay in L2. Within
// a section tiles run longest first.
#pragma once

#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/sequence.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// The tiles of one sequence and head, and how far into the keys each of them reaches. Tile number 0 is the
/// longest: that of the last queries.
struct SequenceTiles {
  int q_len, k_len;
  int tile_queries;  ///< of a tile
  int count;
  int shift;  ///< a tile whose last query is q sees keys up to q + shift
  int most;   ///< keys that a tile sees where there is a window, or a chunk

  TANDEM_DEVICE static SequenceTiles of(const ForwardArguments& args, const Sequence& s, int tile_queries) {
    const core::BasicMask<std::int32_t> mask = args.mask;
    const int window = mask.left + mask.right, chunk = args.chunks.size.value();
    return {s.q_len,
            s.k_len,
            tile_queries,
            (s.q_len + tile_queries - 1) / tile_queries,
            s.k_len - s.mask_q_len + mask.right + 1,
            (window < chunk ? window : chunk) + tile_queries};
  }
  /// Of tile number `number`: what it reads, as good as. Falls with the number.
  TANDEM_DEVICE int length(int number) const {
    const int past = (count - number) * tile_queries, last = (past < q_len ? past : q_len) - 1;
    return core::clamp(core::clamp(last + shift, 0, k_len), 0, most);
  }
  /// How many tiles are longer than `length`, which is not negative.
  TANDEM_DEVICE int longer_than(int length) const {
    if (length >= k_len || length >= most || q_len - 1 + shift <= length) return 0;
    // The first tile whose last query sees more: (m_block + 1) * tile_queries - 1 + shift > length.
    const int missing = length + 1 - shift;
    return count - (missing <= 0 ? 0 : missing / tile_queries);
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
TANDEM_DEVICE int class_of(const SequenceTiles& tiles) {
  int of_length = length_classes - 1;
  for (int least = 1024; of_length > 0 && tiles.length(0) >= least; least *= 2) --of_length;
  return of_length;
}

/// How many tiles of one head each class has.
struct ClassCounts {
  int of[length_classes];
};

/// One warp's view of all sequences, which it takes 32 at a time, one a lane.
struct SequencesOfWarp {
  const ListArguments& args;

  TANDEM_DEVICE Sequence read(int index) const {
    return read_sequence(args.forward.varlen, args.cache, index);
  }
  /// None where the sequence is left to others.
  TANDEM_DEVICE SequenceTiles tiles_of(int index) const {
    const Sequence s = read(index);
    if (s.q_len <= args.few.most_queries) return {};
    return SequenceTiles::of(args.forward, s, args.tile_queries);
  }
  /// Calls visit(index, tiles) for each 32 sequences; lanes behind the last one have no tiles.
  template <typename Visit>
  TANDEM_DEVICE void for_each(Visit visit) const {
    const int count = args.forward.varlen.sequences;
    for (int first = 0; first < count; first += hw::warp_size) {
      const int index = first + static_cast<int>(hw::lane_index());
      SequenceTiles tiles{};
      if (index < count) tiles = tiles_of(index);
      visit(index, tiles);
    }
  }
};

/// More tiles than a list has room for. Sequences that overlap may have more than an int counts.
inline constexpr int most_counted = 1 << 30;

/// A warp's tile, of every head: its sequence, its number there, and how many tiles of one head there are, up
/// to most_counted.
struct CountedTile {
  int sequence, number, total;
  ClassCounts classes;
};

/// Tile number `own` of all of one head, one sequence's after another's. No sequence: it does not exist.
TANDEM_DEVICE CountedTile count_tiles(const SequencesOfWarp& sequences, int own) {
  int past_sequence = 0, number = 0;  // of the only lane that finds it; else 0
  CountedTile tile{};
  sequences.for_each([&](int index, const SequenceTiles& tiles) {
    const int past = tile::warp_scan_sum(tiles.count), begin = tile.total + past - tiles.count;
    if (own >= begin && own < begin + tiles.count) past_sequence = index + 1, number = own - begin;
    const int total = tile.total + tile::warp_sum(tiles.count);
    tile.total = total < most_counted ? total : most_counted;
    const int own_class = class_of(tiles);
    TANDEM_UNROLL
    for (int i = 0; i < length_classes; ++i) tile.classes.of[i] += i == own_class ? tiles.count : 0;
  });
  tile.sequence = tile::warp_sum(past_sequence) - 1;
  tile.number = tile::warp_sum(number);
  TANDEM_UNROLL
  for (int i = 0; i < length_classes; ++i) tile.classes.of[i] = tile::warp_sum(tile.classes.of[i]);
  return tile;
}

/// Calls visit(index, tiles, start) as SequencesOfWarp does, where so many tiles of one head come before the
/// sequence's own.
template <typename Visit>
TANDEM_DEVICE void for_each_in_row(const SequencesOfWarp& sequences, const ClassCounts& classes,
                                   Visit visit) {
  ClassCounts next{};  // start of each class's next sequence
  TANDEM_UNROLL
  for (int i = 1; i < length_classes; ++i) next.of[i] = next.of[i - 1] + classes.of[i - 1];
  sequences.for_each([&](int index, const SequenceTiles& tiles) {
    const int own_class = class_of(tiles);
    int start = 0;
    TANDEM_UNROLL
    for (int i = 0; i < length_classes; ++i) {
      if (classes.of[i] == 0) continue;
      const int count = i == own_class ? tiles.count : 0, past = tile::warp_scan_sum(count);
      if (i == own_class) start = next.of[i] + past - count;
      next.of[i] += tile::of_lane(past, hw::warp_size - 1);
    }
    visit(index, tiles, start);
  });
}

/// A piece of the row of all tiles: part of the tiles of one sequence. Places count from the sequence's
/// first.
struct RowPiece {
  int begin, end;

  /// Those of a section that are among `tiles` tiles from `start` on.
  TANDEM_DEVICE static RowPiece of(int section_begin, int section_tiles, int start, int tiles) {
    const int begin = section_begin - start;
    return {core::clamp(begin, 0, tiles), core::clamp(begin + section_tiles, 0, tiles)};
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

/// How many tiles of one head come before a sequence in the row.
TANDEM_DEVICE int start_in_row(const SequencesOfWarp& sequences, int sequence, const SequenceTiles& tiles) {
  const int own_class = class_of(tiles);
  int before = 0;
  sequences.for_each([&](int index, const SequenceTiles& other) {
    const int its_class = class_of(other);
    before += its_class < own_class || (its_class == own_class && index < sequence) ? other.count : 0;
  });
  return tile::warp_sum(before);
}

/// A tile of the warp's: of every head the same one of its sequence.
struct TileInRow {
  SequenceTiles tiles;  ///< of its sequence
  int sequence, number;
  int start;         ///< tiles of one head before its sequence's
  int packs;         ///< heads
  LengthRange like;  ///< its length, and those that count as the same

  /// How many tiles of a head are longer than this one, or at least as long.
  TANDEM_DEVICE int longer(const SequenceTiles& of_head, bool or_equal) const {
    if (!or_equal) return of_head.longer_than(like.most);
    return like.least == 0 ? of_head.count : of_head.longer_than(like.least - 1);
  }
  TANDEM_DEVICE int place(int pack) const { return (start * packs) + pack * tiles.count + number; }

  /// How many tiles of other sequences come before it in a section. Of equal lengths the first in the row.
  TANDEM_DEVICE int others_before(const SequencesOfWarp& sequences, const ClassCounts& classes,
                                  int section_begin, int section_tiles) const {
    int before = 0;
    for_each_in_row(sequences, classes, [&](int index, const SequenceTiles& other, int its_start) {
      if (index == sequence || other.count == 0) return;
      const auto piece = RowPiece::of(section_begin, section_tiles, its_start * packs, other.count * packs);
      if (piece.begin < piece.end) before += piece.among_first(longer(other, its_start < start), other.count);
    });
    return tile::warp_sum(before);
  }
  /// How many of its own sequence do.
  TANDEM_DEVICE int own_before(int pack, int section_begin, int section_tiles) const {
    const auto piece = RowPiece::of(section_begin, section_tiles, start * packs, tiles.count * packs);
    const RowPiece earlier{piece.begin, pack * tiles.count + number};
    const int strictly = longer(tiles, false), equal = longer(tiles, true);
    return piece.among_first(strictly, tiles.count) + earlier.among_first(equal, tiles.count) -
           earlier.among_first(strictly, tiles.count);
  }
};

}  // namespace tandem::forward
