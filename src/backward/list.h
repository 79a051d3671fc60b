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
// causal the longest come first.
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
  return {at(a[0]), at(a[1]), {at(a[2]), at(a[3]), at(b[0]), at(b[1]), at(b[2])}};
}
TANDEM_DEVICE ListedRows read_rows(std::int32_t* list, int number) {
  std::uint32_t words[4];
  hw::load_global(words, list_entry(list, number));
  return {static_cast<int>(words[0]), static_cast<int>(words[1])};
}

TANDEM_DEVICE int blocks_of_rows(int rows, int block) { return (rows + block - 1) / block; }

/// Entries of one sequence, or of several, in each list; of tiles those of one head.
struct ListCounts {
  int key_tiles, query_tiles, seeing, unseeing, unseen;

  TANDEM_DEVICE static ListCounts of(const ListArguments& args, const CroppedSequence& s) {
    // Nothing is multiplied where there are no queries or no keys.
    const bool empty = s.seeing.q_len == 0 || s.seeing.k_len == 0;
    return {empty ? 0 : blocks_of_rows(s.seeing.k_len, args.key_tiles.rows),
            empty ? 0 : blocks_of_rows(s.seeing.q_len, args.query_tiles.rows),
            blocks_of_rows(s.seeing.q_len, query_padding) * (query_padding / part_rows),
            blocks_of_rows(s.unseeing, part_rows), blocks_of_rows(s.unseen, part_rows)};
  }
  /// Adds those whose condition holds.
  TANDEM_DEVICE void add(const ListCounts& other, bool of_keys, bool of_queries, bool of_rows) {
    key_tiles += of_keys ? other.key_tiles : 0;
    query_tiles += of_queries ? other.query_tiles : 0;
    seeing += of_rows ? other.seeing : 0;
    unseeing += of_rows ? other.unseeing : 0;
    unseen += of_rows ? other.unseen : 0;
  }
  /// Warp: of all lanes.
  TANDEM_DEVICE ListCounts sum() const {
    return {tile::warp_sum(key_tiles), tile::warp_sum(query_tiles), tile::warp_sum(seeing),
            tile::warp_sum(unseeing), tile::warp_sum(unseen)};
  }
};

/// What comes before a sequence in each list, and what there is in all.
struct ListPlaces {
  ListCounts before, all;

  /// Warp. Sequences with more rows to visit come first; of equal ones that with the lower number.
  TANDEM_DEVICE static ListPlaces of(const ListArguments& args, const CroppedSequence& own, int index) {
    ListPlaces places{};
    for (int i = static_cast<int>(hw::lane_index()); i < args.sequences; i += hw::warp_size) {
      const CroppedSequence s = read_sequence(args, i);
      const ListCounts counts = ListCounts::of(args, s);
      const auto is_before = [&](int rows, int own_rows) {
        return rows > own_rows || (rows == own_rows && i < index);
      };
      places.all.add(counts, true, true, true);
      places.before.add(counts, is_before(s.seeing.q_len, own.seeing.q_len),
                        is_before(s.seeing.k_len, own.seeing.k_len), i < index);
    }
    return {places.before.sum(), places.all.sum()};
  }
};

/// Block: lists the tiles of a sequence, from entry `first` on. `visited`: rows that each of them visits.
/// `last_first`: of a head, the tile with the last rows comes first.
TANDEM_DEVICE void list_tiles(std::int32_t* list, const ListedTiles& tiles, int count, int first,
                              const Sequence& s, int visited, bool last_first) {
  const int at_once = core::clamp(tiles.cached_rows / (visited > 0 ? visited : 1), 1, tiles.heads),
            of_section = count * at_once;
  for (int i = static_cast<int>(hw::thread_index()); i < count * tiles.heads; i += small_threads) {
    const int section = i / of_section, first_head = section * at_once,
              heads = core::clamp(tiles.heads - first_head, 0, at_once), within = i - section * of_section;
    const int rank = within / heads, head = first_head + within - rank * heads;
    std::int32_t* to = list_entry(list, first + i);
    tile::store_words(to, last_first ? count - 1 - rank : rank, head, s.q_begin, s.q_len);
    tile::store_words(to + 4, s.k_begin, s.k_len, s.first_row, 0);
  }
}

/// Block: lists `count` blocks of the `rows` rows from `begin` on. Those behind the last row have none.
TANDEM_DEVICE void list_rows(std::int32_t* list, int first, int count, int begin, int rows) {
  for (int i = static_cast<int>(hw::thread_index()); i < count; i += small_threads) {
    const int done = i * part_rows;
    tile::store_words(list_entry(list, first + i), begin + done, core::clamp(rows - done, 0, part_rows), 0,
                      0);
  }
}

/// The body of the kernel.
TANDEM_DEVICE void list_kernel(const ListArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int index = static_cast<int>(hw::block_index());
  const CroppedSequence s = read_sequence(args, index);
  const ListCounts own = ListCounts::of(args, s);
  const auto [before, all] = ListPlaces::of(args, s, index);
  const VarlenLists& lists = args.lists;
  if (index == 0 && hw::thread_index() == 0) {
    store_size(lists.key_tiles, all.key_tiles * args.key_tiles.heads);
    if (lists.query_tiles != nullptr) store_size(lists.query_tiles, all.query_tiles * args.query_tiles.heads);
    store_size(lists.unseeing, all.unseeing);
    store_size(lists.unseen, all.unseen);
  }
  Sequence seeing = s.seeing;
  seeing.first_row = before.seeing * part_rows;
  list_tiles(lists.key_tiles, args.key_tiles, own.key_tiles, before.key_tiles * args.key_tiles.heads, seeing,
             seeing.q_len, false);
  if (lists.query_tiles != nullptr)
    list_tiles(lists.query_tiles, args.query_tiles, own.query_tiles,
               before.query_tiles * args.query_tiles.heads, seeing, seeing.k_len, true);
  list_rows(lists.seeing, before.seeing, own.seeing, seeing.q_begin, seeing.q_len);
  list_rows(lists.unseeing, before.unseeing, own.unseeing, seeing.q_begin - s.unseeing, s.unseeing);
  list_rows(lists.unseen, before.unseen, own.unseen, seeing.k_begin - s.unseen, s.unseen);
  // What the list of statistics has room for beyond these.
  if (index == args.sequences - 1) list_rows(lists.seeing, all.seeing, args.seeing_blocks - all.seeing, 0, 0);
}

}  // namespace tandem::backward
