// The tile scheduler of variable lengths: a list of all tiles, made on the device (list_kernel.h).
//
// How many tiles there are, and how long each is, is known on the device only. A small kernel ahead of the
// forward finds the place of every tile in the order (tile_order.h), and writes the tile there, with all that
// the forward has to know of its sequence: so each of the forward's agents has one place to read. Blocks take
// these places one after another (tile_queue.h).
#pragma once

#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/listed_tile.h"
#include "forward/tile_queue.h"
#include "forward/variant.h"

namespace tandem::forward {

template <ForwardVariant V>
struct ForwardShared;  // shared_storage.h

/// Where lengths vary: the block's tile of a round, as its queue has it.
template <ForwardVariant V>
TANDEM_DEVICE const ListedTile& listed_tile(const core::Tile& tile) {
  return hw::shared_memory<ForwardShared<V>>().queue.tile[tile.batch];
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

/// A tile as its schedule knows it: where lengths vary, `batch` is its place in the block's queue, and `head`
/// is not known.
template <ForwardVariant V>
TANDEM_DEVICE MaskLengths lengths_of(const ForwardArguments& args, const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    const ListedTile& listed = listed_tile<V>(tile);
    return {listed.q_len, listed.k_len, listed.mask_q_len};
  } else {
    return {args.q_len, args.k_len, args.q_len};
  }
}
template <ForwardVariant V>
TANDEM_DEVICE TileQueries queries_of(const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    const ListedTile& listed = listed_tile<V>(tile);
    return {listed.pack, listed.q_begin, listed.q_batch, listed.o_batch};
  } else {
    return {tile.head, 0, tile.batch, tile.batch};
  }
}
template <ForwardVariant V>
TANDEM_DEVICE TileKeys keys_of(const core::Tile& tile) {
  if constexpr (V.lengths == Lengths::varlen) {
    const ListedTile& listed = listed_tile<V>(tile);
    return {listed.k_begin, listed.k_batch};
  } else {
    return {0, tile.batch};
  }
}

/// A tile of the order, and its lengths.
struct OrderedTile {
  core::Tile tile;
  MaskLengths lengths;
};

/// The tile at a position of the order; past its end one that does not exist. Of variable lengths a place of
/// the block's queue.
template <ForwardVariant V>
TANDEM_DEVICE OrderedTile tile_at(const ForwardArguments& args, int position) {
  if constexpr (V.lengths == Lengths::varlen) {
    core::Tile tile{core::Tile::none, 0, position};
    tile.m_block = listed_tile<V>(tile).m_block;
    return {tile, lengths_of<V>(args, tile)};
  } else {
    const core::Tile tile = args.schedule.tile(position);
    const bool exists = position < args.schedule.positions() && tile.exists();
    return {{exists ? tile.m_block : core::Tile::none, tile.head, tile.batch},
            {args.q_len, args.k_len, args.q_len}};
  }
}

}  // namespace tandem::forward
