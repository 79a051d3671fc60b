// Block lists: a tile's loop over the key blocks that are listed for its queries.
#pragma once

#include "core/mask.h"
#include "core/tile_scheduler.h"
#include "forward/arguments.h"
#include "forward/tile_list.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// A tile's loop over key blocks. Where they are listed, it counts places in the tile's list.
struct KeyLoop : core::BlockLoop {
  const std::int32_t* listed = nullptr;  ///< the numbers of the tile's blocks; of sparse variants
};

/// What is listed for a tile: blocks of the kernel, of which a block of the list is a few.
struct TileList {
  const std::int32_t* blocks;
  int places;

  /// A tile that does not exist has some list too. Of variable lengths each sequence has lists. Packs are
  /// heads.
  template <ForwardVariant V>
  TANDEM_DEVICE static TileList of(const ForwardArguments& arguments, const core::Tile& tile) {
    const BlockListArguments& args = arguments.block_list;
    const TileQueries queries = queries_of<V>(tile);
    int entry = queries.q_batch;
    if constexpr (V.lengths == Lengths::varlen) entry = listed_tile<V>(tile).sequence;
    const std::int64_t own = entry * args.batch_stride + queries.pack * args.head_stride +
                             args.q_tiles.divide(tile.m_block).quotient;
    const std::int64_t row = tile.exists() ? own : 0;
    const int count = hw::load_global(args.counts + row), most = count < args.slots ? count : args.slots;
    return {args.blocks + row * args.slots, (most < 0 ? 0 : most) * args.k_blocks.value()};
  }

  /// The block at a place. Of numbers that no block has, one behind the last key.
  TANDEM_DEVICE static int block(const BlockListArguments& args, const std::int32_t* blocks, int place) {
    const auto [slot, within] = args.k_blocks.divide(place);
    const auto number = static_cast<std::uint32_t>(hw::load_global(blocks + slot));
    const std::uint32_t known = number < args.past_keys ? number : args.past_keys;
    return static_cast<int>(known) * args.k_blocks.value() + within;
  }

  /// The first place from which on no block comes before `block`.
  TANDEM_DEVICE int first_place_at(const BlockListArguments& args, int block) const {
    int low = 0, high = places;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (TileList::block(args, blocks, middle) < block)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  /// Ranges of blocks, as ranges of places. Edges have few blocks, so they are walked along.
  TANDEM_DEVICE core::BlockRanges places_of(const BlockListArguments& args,
                                            const core::BlockRanges& ranges) const {
    const int begin = first_place_at(args, ranges.begin), end = first_place_at(args, ranges.end);
    int full_begin = begin, full_end = end;
    while (full_begin < full_end && block(args, blocks, full_begin) < ranges.full_begin) ++full_begin;
    while (full_end > full_begin && block(args, blocks, full_end - 1) >= ranges.full_end) --full_end;
    return {begin, full_begin, full_end, end};
  }
};

/// The key block at a position of the loop.
template <ForwardVariant V>
TANDEM_DEVICE int key_block(const ForwardArguments& args, const KeyLoop& loop, int position) {
  const int place = loop.block(position);
  if constexpr (V.block_sparse) return TileList::block(args.block_list, loop.listed, place);
  return place;
}

}  // namespace tandem::forward
