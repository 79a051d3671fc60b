// The tile scheduler of variable lengths: lists of tiles and of blocks of rows, made on the device.
//
// How many tiles there are is known on the device only. A small kernel ahead of the others, a block for each
// sequence, finds the places of what the sequence adds to each list: behind what others add that come before
// it. Nothing is counted in memory, so the lists are the same in every run. A tile's entry has all that the
// kernels with products have to know of its sequence.
//
// Long sequences come first, so that the last tiles of the grid are short. A sequence's tiles come in
// sections of heads whose rows L2 holds; in each, the first tile of every head comes before the second ones:
// so tiles of one head follow each other in the order in which they add to dQ (ring.h), and where masks are
// causal the longest come first. There sections overlap, also one sequence's last and the next one's first.
#pragma once

#include "backward/sequence.h"
#include "backward/sums.h"
#include "backward/variant.h"
#include "tile/store_words.h"
#include "tile/warp_reduce.h"

namespace tandem::backward {

/// Words of an entry, and of the header: its first word is the number of entries.
inline constexpr int list_words = 8;

/// Of a tile: its number among those of its head, the head, the sequence.
struct ListedTile {
  int tile, head;
  Sequence sequence;
};
/// Of a block of rows: up to 64 of a tensor.
struct ListedRows {
  int first, count;
};

TANDEM_DEVICE std::int32_t* list_entry(std::int32_t* list, int number) {
  return list + std::int64_t{list_words} * (1 + number);
}
TANDEM_DEVICE void store_size(std::int32_t* list, int size) {
  hw::store_global(reinterpret_cast<std::uint32_t*>(list), static_cast<std::uint32_t>(size));
}
TANDEM_DEVICE int list_size(const std::int32_t* list) { return hw::load_global(list); }

TANDEM_DEVICE ListedTile read_tile(std::int32_t* list, int number) {
  std::uint32_t a[4], b[4];
  hw::load_global(a, list_entry(list, number));
  hw::load_global(b, list_entry(list, number) + 4);
  const auto at = [](std::uint32_t word) { return static_cast<std::int32_t>(word); };
  return {at(a[0]), at(a[1]), {at(a[2]), at(a[3]), at(b[0]), at(b[1]), at(b[2]), at(b[3])}};
}
TANDEM_DEVICE ListedRows read_rows(std::int32_t* list, int number) {
  std::uint32_t words[4];
  hw::load_global(words, list_entry(list, number));
  return {static_cast<int>(words[0]), static_cast<int>(words[1])};
}

TANDEM_DEVICE int blocks_of_rows(int rows, int block) { return (rows + block - 1) / block; }
/// Of as many sequences, whose rows are these together, at most.
template <typename Int>
constexpr Int most_blocks(Int rows, Int sequences, int block) {
  return rows == 0 ? 0 : rows / block + sequences;
}

/// Entries of one sequence, or of several, in each list; of tiles those of one head.
struct ListCounts {
  int key_tiles, query_tiles, seeing, unseeing, unseen;
  int parts;  ///< of dQ, of one head: in the order of tiles of keys

  TANDEM_DEVICE static ListCounts of(const ListArguments& args, const CroppedSequence& s) {
    // Nothing is multiplied where there are no queries or no keys.
    const bool empty = s.seeing.q_len == 0 || s.seeing.k_len == 0;
    return {empty ? 0 : blocks_of_rows(s.seeing.k_len, args.key_tiles.rows),
            empty ? 0 : blocks_of_rows(s.seeing.q_len, args.query_tiles.rows),
            blocks_of_rows(s.seeing.q_len, query_padding) * (query_padding / part_rows),
            blocks_of_rows(s.unseeing, part_rows),
            blocks_of_rows(s.unseen, part_rows),
            empty ? 0 : blocks_of_rows(s.seeing.q_len, args.visit_rows) * args.parts_of_visit};
  }
  /// Adds those whose condition holds. Sequences that overlap may have more entries than an int counts: a
  /// lane stops at more than any list has room for (has_room).
  TANDEM_DEVICE void add(const ListCounts& other, bool of_keys, bool of_queries, bool of_rows) {
    const auto count = [](int& of_list, bool counts, int more) {
      constexpr int most = (1 << 30) / static_cast<int>(hw::warp_size);
      const int sum = of_list + (counts ? more : 0);
      of_list = sum < most ? sum : most;
    };
    count(key_tiles, of_keys, other.key_tiles);
    count(query_tiles, of_queries, other.query_tiles);
    count(seeing, of_rows, other.seeing);
    count(unseeing, of_rows, other.unseeing);
    count(unseen, of_rows, other.unseen);
    parts += of_keys ? other.parts : 0;
  }
  /// Warp: of all lanes.
  TANDEM_DEVICE ListCounts sum() const {
    return {tile::warp_sum(key_tiles), tile::warp_sum(query_tiles), tile::warp_sum(seeing),
            tile::warp_sum(unseeing),  tile::warp_sum(unseen),      tile::warp_sum(parts)};
  }
};

/// A sequence's place among those that have tiles: more rows come first, and of equal ones lower numbers.
struct Precedence {
  int rows, index;

  TANDEM_DEVICE bool is_before(const Precedence& other) const {
    return rows > other.rows || (rows == other.rows && index < other.index);
  }
  /// Warp: the last one of all lanes', or the first one. Lanes without any have `none`.
  TANDEM_DEVICE int last() const {
    const int least = tile::warp_min(index == none ? most : rows);
    return tile::warp_max(index != none && rows == least ? index : none);
  }
  TANDEM_DEVICE int first() const {
    const int largest = tile::warp_max(index == none ? -1 : rows);
    const int found = tile::warp_min(index != none && rows == largest ? index : most);
    return found == most ? none : found;
  }
  static constexpr int none = -1, most = 0x7fffffff;
};

/// What comes before a sequence in each list, what there is in all, and whose tiles of keys come right before
/// and behind its own, if anybody's do.
struct ListPlaces {
  ListCounts before, all;
  int previous, next;

  TANDEM_DEVICE static ListPlaces of(const ListArguments& args, const CroppedSequence& own, int index) {
    const Precedence of_keys{own.seeing.q_len, index}, of_queries{own.seeing.k_len, index};
    ListCounts before{}, all{};
    Precedence previous{0, Precedence::none}, next = previous;
    for (int i = static_cast<int>(hw::lane_index()); i < args.sequences; i += hw::warp_size) {
      const CroppedSequence s = read_sequence(args, i);
      const ListCounts counts = ListCounts::of(args, s);
      const Precedence other{s.seeing.q_len, i};
      const bool is_before = other.is_before(of_keys);
      all.add(counts, true, true, true);
      before.add(counts, is_before, Precedence{s.seeing.k_len, i}.is_before(of_queries), i < index);
      if (i == index || counts.key_tiles == 0) continue;
      Precedence& nearest = is_before ? previous : next;
      if (nearest.index == Precedence::none || nearest.is_before(other) == is_before) nearest = other;
    }
    return {before.sum(), all.sum(), previous.last(), next.first()};
  }
};

/// How the tiles of a sequence follow one another: in sections of heads, each of which has rows of tiles, one
/// of each head. Where sections overlap, the rows from `half` on come beside the first ones of the next
/// section, a row of either in turn (as in key_order.h).
struct TileSections {
  int count = 0;  ///< tiles of a head
  int half = 0;   ///< as many, where sections do not overlap
  int heads = 0;
  int at_once = 1;  ///< heads of a section; the last one may have fewer

  TANDEM_DEVICE static TileSections of(const ListedTiles& tiles, int count, int visited, bool may_overlap) {
    const bool overlap = may_overlap && count >= SectionOverlap::fewest_tiles;
    // Of two sections that are worked on at the same time L2 holds both, but where visits take long.
    const int shares = overlap && count < tiles.long_from ? 2 : 1;
    const int cached = tiles.cached_rows / shares / (visited > 0 ? visited : 1);
    const int fewest = overlap ? tiles.fewest_heads : 1;
    return {count, overlap ? (count + 1) / 2 : count, tiles.heads,
            core::clamp(cached, fewest < tiles.heads ? fewest : tiles.heads, tiles.heads)};
  }
  TANDEM_DEVICE int last() const { return (heads - 1) / at_once; }
  TANDEM_DEVICE int width(int section) const { return core::clamp(heads - section * at_once, 0, at_once); }
  TANDEM_DEVICE int rows_behind() const { return count - half; }

  /// Place of tile `number` of a head. `previous`, `next`: whose sections come before and behind.
  TANDEM_DEVICE int place(int head, int number, const TileSections& previous,
                          const TileSections& next) const {
    const auto least = [](int a, int b) { return a < b ? a : b; };
    const int section = head / at_once, column = head - section * at_once, own = width(section),
              begin = section * at_once * count;
    if (number < half) {
      const bool is_first = section == 0;
      const int rows = is_first ? previous.rows_behind() : rows_behind(),
                others = is_first ? previous.width(previous.last()) : at_once;
      return begin - rows * others + least(number + 1, rows) * others + number * own + column;
    }
    const bool is_last = section == last();
    const int rows = is_last ? next.half : half, others = is_last ? next.width(0) : width(section + 1);
    return begin + number * own + least(number - half, rows) * others + column;
  }
};

/// Block: lists a sequence's tiles, from entry `first` on, as `sections` say; between those of `previous` and
/// `next`. `last_first`: of a head, the tile with the last rows comes first.
struct TilesOfSequence {
  TileSections sections, previous, next;
  bool last_first;

  TANDEM_DEVICE void list(std::int32_t* list, int first, const Sequence& s) const {
    const int count = sections.count, all = count * sections.heads;
    for (int i = static_cast<int>(hw::thread_index()); i < all; i += small_threads) {
      const int head = i / count, number = i - head * count;
      std::int32_t* to = list_entry(list, first + sections.place(head, number, previous, next));
      tile::store_words(to, last_first ? count - 1 - number : number, head, s.q_begin, s.q_len);
      tile::store_words(to + 4, s.k_begin, s.k_len, s.first_row, s.first_part);
    }
  }
};

/// The sections of keys of a sequence, of another one, or of none.
TANDEM_DEVICE TileSections key_sections(const ListArguments& args, const CroppedSequence& s,
                                        bool may_overlap) {
  return TileSections::of(args.key_tiles, ListCounts::of(args, s).key_tiles, s.seeing.q_len, may_overlap);
}
TANDEM_DEVICE TileSections key_sections(const ListArguments& args, int index, bool may_overlap) {
  if (index == Precedence::none) return {};
  return key_sections(args, read_sequence(args, index), may_overlap);
}

/// Whether the lists have room for all. They do where lengths ascend; other numbers make sequences overlap,
/// and then nothing is listed.
TANDEM_DEVICE bool has_room(const ListArguments& args, const ListCounts& all) {
  const auto room = [&args](const PackedRows& rows, int block) {
    return most_blocks(rows.total, args.sequences, block);
  };
  return all.key_tiles <= room(args.k, args.key_tiles.rows) &&
         all.query_tiles <= room(args.q, args.query_tiles.rows) && all.seeing <= args.seeing_blocks &&
         all.unseeing <= room(args.q, part_rows) && all.unseen <= room(args.k, part_rows);
}

/// Block: lists `count` blocks of the `rows` rows from `begin` on. Those behind the last row have none.
TANDEM_DEVICE void list_rows(std::int32_t* list, int first, int count, int begin, int rows) {
  for (int i = static_cast<int>(hw::thread_index()); i < count; i += small_threads) {
    const int done = i * part_rows;
    tile::store_words(list_entry(list, first + i), begin + done, core::clamp(rows - done, 0, part_rows), 0,
                      0);
  }
}

/// Block.
TANDEM_DEVICE void list_nothing(const ListArguments& args) {
  if (hw::block_index() != 0) return;
  list_rows(args.lists.seeing, 0, args.seeing_blocks, 0, 0);
  if (hw::thread_index() != 0) return;
  for (std::int32_t* list :
       {args.lists.key_tiles, args.lists.query_tiles, args.lists.unseeing, args.lists.unseen})
    if (list != nullptr) store_size(list, 0);
}

/// The body of the kernel.
TANDEM_DEVICE void list_kernel(const ListArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int index = static_cast<int>(hw::block_index());
  const CroppedSequence s = read_sequence(args, index);
  const ListCounts own = ListCounts::of(args, s);
  const auto [before, all, previous, next] = ListPlaces::of(args, s, index);
  const VarlenLists& lists = args.lists;
  if (!has_room(args, all)) return list_nothing(args);
  if (index == 0 && hw::thread_index() == 0) {
    store_size(lists.key_tiles, all.key_tiles * args.key_tiles.heads);
    if (lists.query_tiles != nullptr) store_size(lists.query_tiles, all.query_tiles * args.query_tiles.heads);
    store_size(lists.unseeing, all.unseeing);
    store_size(lists.unseen, all.unseen);
  }
  Sequence seeing = s.seeing;
  seeing.first_row = before.seeing * part_rows;
  seeing.first_part = before.parts * args.q_heads;
  const int key_tiles = all.key_tiles * args.key_tiles.heads;
  const bool may_overlap = key_tiles >= args.key_tiles.overlap_from;
  const TilesOfSequence of_keys{key_sections(args, s, may_overlap), key_sections(args, previous, may_overlap),
                                key_sections(args, next, may_overlap), false};
  of_keys.list(lists.key_tiles, before.key_tiles * args.key_tiles.heads, seeing);
  if (lists.query_tiles != nullptr) {
    const TilesOfSequence of_queries{
        TileSections::of(args.query_tiles, own.query_tiles, seeing.k_len, false), {}, {}, true};
    of_queries.list(lists.query_tiles, before.query_tiles * args.query_tiles.heads, seeing);
  }
  list_rows(lists.seeing, before.seeing, own.seeing, seeing.q_begin, seeing.q_len);
  list_rows(lists.unseeing, before.unseeing, own.unseeing, seeing.q_begin - s.unseeing, s.unseeing);
  list_rows(lists.unseen, before.unseen, own.unseen, seeing.k_begin - s.unseen, s.unseen);
  // What the list of statistics has room for beyond these.
  if (index == args.sequences - 1) list_rows(lists.seeing, all.seeing, args.seeing_blocks - all.seeing, 0, 0);
}

}  // namespace tandem::backward
