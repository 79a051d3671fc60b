// The tile scheduler of variable lengths: a list of all tiles, made on the device.
//
// How many tiles there are, and how long each is, is known on the device only. A small kernel ahead of the
// forward finds the place of every tile in the order (tile_order.h), and writes the tile there, with all that
// the forward has to know of its sequence: so each of the forward's agents has one place to read. Blocks take
// these places one after another (tile_queue.h).
#pragma once

#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/chip_share.h"
#include "forward/few_list.h"
#include "forward/sequence.h"
#include "forward/tile_order.h"
#include "forward/tile_queue.h"
#include "forward/variant.h"

namespace tandem::forward {

/// Writes what the forward has to know of a tile of sequence `index`.
TANDEM_DEVICE void write_listed(const VarlenArguments& varlen, int place, int pack, int m_block,
                                const Sequence& s, int index) {
  std::int32_t* to = varlen.tile_list + tile_list_header + std::int64_t{listed_tile_words} * place;
  tile::store_words(to, m_block, s.q_len, s.mask_q_len, s.k_len);
  tile::store_words(to + 4, pack, s.q_begin, s.q_batch, s.o_batch);
  tile::store_words(to + 8, s.k_begin, s.k_batch, index, 0);
}

/// One thread: how many tiles there are, that none is handed out, and who begins at once. Of blocks beside a
/// step share_chip says the latter.
TANDEM_DEVICE void write_header(const ListArguments& args, int tiles) {
  auto* header = reinterpret_cast<std::uint32_t*>(args.forward.varlen.tile_list);
  hw::store_global(header, static_cast<std::uint32_t>(tiles));
  hw::store_global(header + 2, 0u);
  if (args.few.share.multiprocessors == 0)
    hw::store_global(header + 1, static_cast<std::uint32_t>(args.section.grid));
}

/// One warp a tile of a head, of as many as there may be. The list has room for them where cu_seqlens_q
/// ascends; other numbers make sequences overlap, and then nothing is listed.
TANDEM_DEVICE void list_tiles(const ListArguments& args) {
  const VarlenArguments& varlen = args.forward.varlen;
  const int lane = static_cast<int>(hw::lane_index());
  const int own =
      static_cast<int>(hw::block_index()) * ListVariant::tiles() + static_cast<int>(hw::warp_index());
  const SequencesOfWarp sequences{args};
  const CountedTile counted = count_tiles(sequences, own);
  const bool has_room = std::int64_t{counted.total} * varlen.packs <= varlen.most_tiles;
  const int all = has_room ? counted.total * varlen.packs : 0;
  if (own == 0 && lane == 0) write_header(args, all);
  if (!has_room || counted.sequence < 0) return;

  const Sequence s = sequences.read(counted.sequence);
  const SequenceTiles tiles = SequenceTiles::of(args.forward, s, args.tile_queries);
  const TileInRow tile{tiles,          counted.sequence,
                       counted.number, start_in_row(sequences, counted.sequence, tiles),
                       varlen.packs,   LengthRange::around(tiles.length(counted.number))};
  const int size = args.section.tiles, last_section = tile.place(varlen.packs - 1) / size;
  for (int section = tile.place(0) / size; section <= last_section; ++section) {
    const int begin = section * size, others = tile.others_before(sequences, counted.classes, begin, size);
    for (int pack = lane; pack < varlen.packs; pack += hw::warp_size) {
      if (tile.place(pack) / size != section) continue;
      const int rank = others + tile.own_before(pack, begin, size);
      write_listed(varlen, begin + rank, pack, tile.tiles.count - 1 - tile.number, s, counted.sequence);
    }
  }
}

/// The same of parts of the keys. All have the same queries, and but for the last ones as many keys: so each
/// tile's place follows from its number.
TANDEM_DEVICE void list_parts(const ListArguments& args) {
  const VarlenArguments& varlen = args.forward.varlen;
  const int lane = static_cast<int>(hw::lane_index());
  const int own =
      static_cast<int>(hw::block_index()) * ListVariant::tiles() + static_cast<int>(hw::warp_index());
  const int of_part = (varlen.q_rows + args.tile_queries - 1) / args.tile_queries;
  if (own == 0 && lane == 0) write_header(args, varlen.sequences * of_part * varlen.packs);
  const int part = own / of_part, m_block = own % of_part;
  if (part >= varlen.sequences) return;
  const Sequence s = read_sequence(varlen, args.cache, part);
  for (int pack = lane; pack < varlen.packs; pack += hw::warp_size)
    write_listed(varlen, own * varlen.packs + pack, pack, m_block, s, part);
}

/// The body of the kernel that makes the lists.
TANDEM_DEVICE void list_all(const ListArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  if (args.forward.varlen.split_keys > 0) return list_parts(args);
  const int behind_tiles = static_cast<int>(hw::block_index()) - args.tile_blocks;
  if (behind_tiles < 0) return list_tiles(args);
  const int warp = behind_tiles * ListVariant::tiles() + static_cast<int>(hw::warp_index());
  if (warp == 0 && args.few.share.multiprocessors > 0) share_chip(args);
  list_few(args.forward.varlen, args.cache, args.few, warp);
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

/// The sequence of a tile of the list.
TANDEM_DEVICE int sequence_of(const ForwardArguments& args, const core::Tile& tile) {
  std::uint32_t words[4];
  read_listed(words, args, tile.batch, 8);
  return static_cast<int>(words[2]);
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

/// The tile at a position of the order; past its end one that does not exist. Of variable lengths a place of
/// the list, or TileQueue::none.
template <ForwardVariant V>
TANDEM_DEVICE OrderedTile tile_at(const ForwardArguments& args, int position) {
  if constexpr (V.lengths == Lengths::varlen) {
    const bool exists = position != TileQueue::none;
    const int place = exists ? position : 0;
    std::uint32_t words[4];
    read_listed(words, args, place, 0);
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
