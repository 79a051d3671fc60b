// The tile scheduler of variable lengths: a list of all tiles, longest first, made on the device.
//
// How many tiles there are, and how long each is, is known on the device only. A small kernel ahead of the
// forward finds the rank of every tile among all others by length, and writes the tile there, with all that
// the forward has to know of its sequence: so each of the forward's agents has one place to read, which the
// producer has brought near. The grid takes the list out as it does causal tiles: there and back.
#pragma once

#include <algorithm>

#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/sequence.h"
#include "forward/variant.h"

namespace tandem::forward {

/// The tiles of one sequence and head, and how far into the keys each of them reaches.
struct SequenceTiles {
  int q_len, k_len;
  int tile_queries;  ///< of a tile
  int count;
  int shift;  ///< a tile whose last query is q sees keys up to q + shift
  int most;   ///< keys that a tile sees where there is a window

  TANDEM_DEVICE static SequenceTiles of(const ForwardArguments& args, const Sequence& s, int tile_queries) {
    const core::BasicMask<std::int32_t> mask = args.mask;
    return {s.q_len,
            s.k_len,
            tile_queries,
            (s.q_len + tile_queries - 1) / tile_queries,
            s.k_len - s.mask_q_len + mask.right + 1,
            mask.left + mask.right + tile_queries};
  }
  /// Of a tile: what it reads, as good as. Rises with the tile's number.
  TANDEM_DEVICE int length(int m_block) const {
    const int past = (m_block + 1) * tile_queries, last = (past < q_len ? past : q_len) - 1;
    return core::clamp(core::clamp(last + shift, 0, k_len), 0, most);
  }
  /// How many tiles are longer than `length`, which is not negative.
  TANDEM_DEVICE int longer_than(int length) const {
    if (length >= k_len || length >= most || q_len - 1 + shift <= length) return 0;
    // The first tile whose last query sees more: (m_block + 1) * tile_queries - 1 + shift > length.
    const int missing = length + 1 - shift;
    return count - (missing <= 0 ? 0 : missing / tile_queries);
  }
  TANDEM_DEVICE int at_least(int length) const { return length == 0 ? count : longer_than(length - 1); }
};

/// Warp: the sum of all lanes' values.
TANDEM_DEVICE int sum_of_lanes(int value) {
  auto sum = static_cast<std::uint32_t>(value);
  TANDEM_UNROLL
  for (std::uint32_t mask = hw::warp_size / 2; mask > 0; mask /= 2) sum += hw::shuffle_xor(sum, mask);
  return static_cast<int>(sum);
}
/// Warp: the sum of the values of the lanes before the own one, and of the own.
TANDEM_DEVICE int sum_up_to_lane(int value) {
  auto sum = static_cast<std::uint32_t>(value);
  const std::uint32_t lane = hw::lane_index();
  TANDEM_UNROLL
  for (std::uint32_t distance = 1; distance < hw::warp_size; distance *= 2) {
    const std::uint32_t before = hw::shuffle(sum, lane < distance ? lane : lane - distance);
    if (lane >= distance) sum += before;
  }
  return static_cast<int>(sum);
}

/// A tile by its sequence, and how many tiles of one head there are.
struct CountedTile {
  int sequence, m_block, total;
};

/// Warp, which takes 32 sequences at a time: tile number `own` of all, one sequence's after another's.
TANDEM_DEVICE CountedTile count_tiles(const ListArguments& list, int own) {
  const int lane = static_cast<int>(hw::lane_index());
  const VarlenArguments& varlen = list.forward.varlen;
  const int tile_queries = list.tile_queries;
  int total = 0, past_sequence = 0, m_block = 0;  // of the only lane that finds it; else 0
  for (int first = 0; first < varlen.sequences; first += hw::warp_size) {
    const int index = first + lane;
    int count = 0;
    if (index < varlen.sequences)
      count = (read_sequence(varlen, list.cache, index).q_len + tile_queries - 1) / tile_queries;
    const int past = sum_up_to_lane(count), begin = total + past - count;
    if (own >= begin && own < begin + count) past_sequence = index + 1, m_block = own - begin;
    total += sum_of_lanes(count);
  }
  return {sum_of_lanes(past_sequence) - 1, sum_of_lanes(m_block), total};
}

/// Warp: how many tiles come before this one: longest first; of equal ones the earlier sequence's, and of one
/// sequence the later queries'.
TANDEM_DEVICE int rank_of(const ListArguments& list, const CountedTile& tile) {
  const ForwardArguments& args = list.forward;
  const auto tiles_of = [&](int index) {
    return SequenceTiles::of(args, read_sequence(args.varlen, list.cache, index), list.tile_queries);
  };
  const SequenceTiles mine = tiles_of(tile.sequence);
  const int length = mine.length(tile.m_block);
  int others = 0;
  for (int i = static_cast<int>(hw::lane_index()); i < args.varlen.sequences; i += hw::warp_size) {
    if (i == tile.sequence) continue;
    const SequenceTiles other = tiles_of(i);
    others += i < tile.sequence ? other.at_least(length) : other.longer_than(length);
  }
  return sum_of_lanes(others) + mine.count - 1 - tile.m_block;
}

TANDEM_DEVICE void store_words(std::int32_t* to, int a, int b, int c, int d) {
  const std::uint32_t words[4] = {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b),
                                  static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(d)};
  hw::store_global(static_cast<void*>(to), words);
}

/// The body of the kernel that makes the list. One warp a tile of a head, of as many as there may be.
TANDEM_DEVICE void list_tiles(const ListArguments& list) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const VarlenArguments& varlen = list.forward.varlen;
  const int lane = static_cast<int>(hw::lane_index());
  const int own =
      static_cast<int>(hw::block_index()) * ListVariant::tiles() + static_cast<int>(hw::warp_index());
  const CountedTile tile = count_tiles(list, own);
  if (own == 0 && lane == 0)
    hw::store_global(reinterpret_cast<std::uint32_t*>(varlen.tile_list),
                     static_cast<std::uint32_t>(tile.total * varlen.packs));
  if (tile.sequence < 0) return;

  const int rank = rank_of(list, tile);
  const Sequence s = read_sequence(varlen, list.cache, tile.sequence);
  for (int pack = lane; pack < varlen.packs; pack += hw::warp_size) {
    std::int32_t* to =
        varlen.tile_list + tile_list_header + std::int64_t{listed_tile_words} * (rank * varlen.packs + pack);
    store_words(to, tile.m_block, s.q_len, s.mask_q_len, s.k_len);
    store_words(to + 4, pack, s.q_begin, s.q_batch, s.o_batch);
    store_words(to + 8, s.k_begin, s.k_batch, 0, 0);
  }
}

/// Four words of the tile at a position of the list.
TANDEM_DEVICE void read_listed(std::uint32_t (&words)[4], const ForwardArguments& args, int position,
                               int first_word) {
  hw::load_global(words, args.varlen.tile_list + tile_list_header + first_word +
                             std::int64_t{listed_tile_words} * position);
}

/// What the mask has to know of a tile's sequence.
struct MaskLengths {
  int q_len, k_len;
  int mask_q_len;  ///< as many queries as the mask counts: the last of them is aligned with the last key
};
/// Whose queries a tile has: rows from q_begin on, of entry q_batch of q and of o_batch of o and lse.
struct TileQueries {
  int pack, q_begin, q_batch, o_batch;
};
/// Its keys: rows from k_begin on of entry k_batch; of paged ones that is the row of the page table.
struct TileKeys {
  int k_begin, k_batch;
};

/// A tile as its schedule knows it: where lengths vary, `batch` is its position in the list, and `head` is
/// not known.
template <ForwardVariant V>
TANDEM_DEVICE MaskLengths lengths_of(const ForwardArguments& args, const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    std::uint32_t words[4];
    read_listed(words, args, tile.batch, 0);
    return {static_cast<int>(words[1]), static_cast<int>(words[3]), static_cast<int>(words[2])};
  } else {
    return {args.q_len, args.k_len, args.q_len};
  }
}
template <ForwardVariant V>
TANDEM_DEVICE TileQueries queries_of(const ForwardArguments& args, const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    std::uint32_t words[4];
    read_listed(words, args, tile.batch, 4);
    return {static_cast<int>(words[0]), static_cast<int>(words[1]), static_cast<int>(words[2]),
            static_cast<int>(words[3])};
  } else {
    return {tile.head, 0, tile.batch, tile.batch};
  }
}
template <ForwardVariant V>
TANDEM_DEVICE TileKeys keys_of(const ForwardArguments& args, const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    std::uint32_t words[4];
    read_listed(words, args, tile.batch, 8);
    return {static_cast<int>(words[0]), static_cast<int>(words[1])};
  } else {
    return {0, tile.batch};
  }
}

/// Of a tile of the list.
TANDEM_DEVICE int m_block_of(const ForwardArguments& args, const core::Tile& tile) {
  std::uint32_t words[4];
  read_listed(words, args, tile.batch, 0);
  return static_cast<int>(words[0]);
}

/// A tile of the order, and its lengths.
struct OrderedTile {
  core::Tile tile;
  MaskLengths lengths;
};

/// The tile at a position of the order; past its end one that does not exist.
template <ForwardVariant V>
TANDEM_DEVICE OrderedTile tile_at(const ForwardArguments& args, int position) {
  if constexpr (V.lengths == Lengths::varlen) {
    const int last_place = args.varlen.most_tiles - 1, place = position < last_place ? position : last_place;
    std::uint32_t words[4];
    read_listed(words, args, place, 0);
    const bool exists = position < hw::load_global(args.varlen.tile_list);
    return {{exists ? static_cast<int>(words[0]) : core::Tile::none, 0, place},
            {static_cast<int>(words[1]), static_cast<int>(words[3]), static_cast<int>(words[2])}};
  } else {
    const core::Tile tile = args.schedule.tile(position);
    const bool exists = position < args.schedule.positions() && tile.exists();
    return {{exists ? tile.m_block : core::Tile::none, tile.head, tile.batch},
            {args.q_len, args.k_len, args.q_len}};
  }
}

}  // namespace tandem::forward
