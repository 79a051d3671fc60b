// The kernel that makes the list of tiles (tile_list.h), and lists sequences of few queries (few_list.h).
#pragma once

#include "forward/arguments.h"
#include "forward/chip_share.h"
#include "forward/few_list.h"
#include "forward/listed_tile.h"
#include "forward/sequence.h"
#include "forward/sequence_table.h"
#include "forward/tile_order.h"
#include "forward/variant.h"

namespace tandem::forward {

/// Writes a tile of a sequence.
TANDEM_DEVICE void write_listed(const VarlenArguments& varlen, int place, int pack, int m_block,
                                const Sequence& s, int index) {
  store_listed(varlen.tile_list, place,
               {m_block, s.q_len, s.mask_q_len, s.k_len, pack, s.q_begin, s.q_batch, s.o_batch, s.k_begin,
                s.k_batch, index, 0});
}

/// One thread: how many tiles there are, that none is handed out, and who begins at once. Of blocks beside a
/// step share_chip says the latter.
TANDEM_DEVICE void write_header(const ListArguments& args, int tiles) {
  auto* header = reinterpret_cast<std::uint32_t*>(args.forward.varlen.tile_list);
  hw::store_global(header, static_cast<std::uint32_t>(tiles));
  hw::store_global(header + 2, 0u);
  hw::store_global(header + 3, args.forward.varlen.list_key);
  if (args.few.share.multiprocessors == 0)
    hw::store_global(header + 1, static_cast<std::uint32_t>(args.grid));
}

/// A warp's: one tile, of some heads.
struct ListedHeads {
  int tile;         ///< its number, of all tiles of one head
  int first, past;  ///< packs

  TANDEM_DEVICE static ListedHeads of(const VarlenArguments& varlen) {
    const int own =
        static_cast<int>(hw::block_index()) * ListVariant::warps() + static_cast<int>(hw::warp_index());
    const int groups = ListVariant::groups_of(varlen.packs), first = own % groups * ListVariant::packs();
    const int past = first + ListVariant::packs();
    return {own / groups, first, past < varlen.packs ? past : varlen.packs};
  }
  /// The lane's pack; lanes behind the last one have none.
  TANDEM_DEVICE int pack() const { return first + static_cast<int>(hw::lane_index()); }
  TANDEM_DEVICE bool has_pack() const { return pack() < past; }
};

/// Of as many as there may be. The list has room for them where cu_seqlens_q ascends; other numbers make
/// sequences overlap, and then nothing is listed.
TANDEM_DEVICE void list_tiles(const ListArguments& args, SequenceTable& table) {
  const VarlenArguments& varlen = args.forward.varlen;
  SequencesOfBlock sequences(args, table);
  const bool has_room = std::int64_t{sequences.total()} * varlen.packs <= varlen.most_tiles;
  const int all = has_room ? sequences.total() * varlen.packs : 0;
  if (hw::block_index() == 0 && hw::thread_index() == 0) write_header(args, all);
  if (!has_room) return;

  const ListedHeads own = ListedHeads::of(varlen);
  int index = SequencesOfBlock::none;
  TileInRow tile{};
  for (int chunk = 0; chunk < sequences.chunks(); ++chunk) {
    sequences.bring(chunk);
    const int found = sequences.find(own.tile);
    if (found == SequencesOfBlock::none) continue;
    index = found;
    const SequenceInRow& sequence = sequences[found];
    const int number = own.tile - sequence.start, length = sequence.tiles.length(sequences.size(), number);
    tile = {sequences.size(), sequence, number, varlen.packs, LengthRange::around(length)};
  }
  const bool exists = index != SequencesOfBlock::none;
  const int sorted_begin = all > sorted_rounds * args.grid ? all - sorted_rounds * args.grid : 0;
  int others = 0;  // tiles of other sequences that come before the lane's, of the sorted ones
  for (int chunk = 0; chunk < sequences.chunks(); ++chunk) {
    sequences.bring(chunk);
    if (!exists || tile.place(own.past - 1) < sorted_begin) continue;
    int before = 0;
    sequences.for_each([&](int other, const SequenceInRow& sequence) {
      if (other != index) before += tile.before_of(sequence, sorted_begin, all);
    });
    others += tile::warp_sum(before);
  }
  if (!exists || !own.has_pack()) return;
  int place = tile.place(own.pack());
  if (place >= sorted_begin) place = sorted_begin + others + tile.own_before(own.pack(), sorted_begin, all);
  write_listed(varlen, place, own.pack(), tile.sequence.tiles.count - 1 - tile.number,
               read_sequence(varlen, args.cache, index), index);
}

/// The same of parts of the keys. All have the same queries, and but for the last ones as many keys: so each
/// tile's place follows from its number.
TANDEM_DEVICE void list_parts(const ListArguments& args) {
  const VarlenArguments& varlen = args.forward.varlen;
  const int of_part = args.tile_queries.divide(varlen.q_rows + args.tile_queries.value() - 1).quotient;
  if (hw::block_index() == 0 && hw::thread_index() == 0)
    write_header(args, varlen.sequences * of_part * varlen.packs);
  const ListedHeads own = ListedHeads::of(varlen);
  const int part = own.tile / of_part, m_block = own.tile % of_part;
  if (part >= varlen.sequences || !own.has_pack()) return;
  write_listed(varlen, own.tile * varlen.packs + own.pack(), own.pack(), m_block,
               read_sequence(varlen, args.cache, part), part);
}

/// Behind the blocks that list tiles: the first warp shares out the chip, the others list sequences.
TANDEM_DEVICE void list_others(const ListArguments& args, int warp) {
  if (warp > 0) return list_few(args.forward.varlen, args.cache, args.few, warp - 1);
  if (args.few.share.multiprocessors > 0) share_chip(args);
}

/// The body of the kernel that makes the lists.
TANDEM_DEVICE void list_all(const ListArguments& args, SequenceTable& table) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  if (args.forward.varlen.split_keys > 0) return list_parts(args);
  const int behind_tiles = static_cast<int>(hw::block_index()) - args.tile_blocks;
  if (behind_tiles < 0) return list_tiles(args, table);
  list_others(args, behind_tiles * ListVariant::warps() + static_cast<int>(hw::warp_index()));
}

}  // namespace tandem::forward
