// A tile of the list of variable lengths (tile_list.h), as it lies in memory.
#pragma once

#include <cstdint>

#include "core/tile_scheduler.h"
#include "hw/hw.h"
#include "tile/store_words.h"

namespace tandem::forward {

/// All that the forward has to know of a tile and of its sequence.
struct alignas(16) ListedTile {
  std::int32_t m_block;  ///< core::Tile::none: there is no tile
  std::int32_t q_len, mask_q_len, k_len;
  std::int32_t pack, q_begin, q_batch, o_batch;
  std::int32_t k_begin, k_batch, sequence, gap;
};

/// The list, in words: how many tiles there are; how many blocks take the place of their number first; how
/// many places have been handed out besides (tile_queue.h), 0 between calls; for which calls it is
/// (VarlenArguments::list_key); and the tiles.
inline constexpr int tile_list_header = 4, listed_tile_words = sizeof(ListedTile) / sizeof(std::int32_t);
constexpr std::int64_t tile_list_words(std::int64_t most_tiles) {
  return tile_list_header + listed_tile_words * most_tiles;
}

TANDEM_DEVICE std::int32_t* place_in_list(std::int32_t* tile_list, int place) {
  return tile_list + tile_list_header + std::int64_t{listed_tile_words} * place;
}
TANDEM_DEVICE void store_listed(std::int32_t* tile_list, int place, const ListedTile& tile) {
  std::int32_t* to = place_in_list(tile_list, place);
  tile::store_words(to, tile.m_block, tile.q_len, tile.mask_q_len, tile.k_len);
  tile::store_words(to + 4, tile.pack, tile.q_begin, tile.q_batch, tile.o_batch);
  tile::store_words(to + 8, tile.k_begin, tile.k_batch, tile.sequence, tile.gap);
}
TANDEM_DEVICE ListedTile load_listed(std::int32_t* tile_list, int place) {
  const std::int32_t* from = place_in_list(tile_list, place);
  std::uint32_t a[4], b[4], c[4];
  hw::load_global(a, from);
  hw::load_global(b, from + 4);
  hw::load_global(c, from + 8);
  const auto number = [](std::uint32_t word) { return static_cast<std::int32_t>(word); };
  return {number(a[0]), number(a[1]), number(a[2]), number(a[3]), number(b[0]), number(b[1]),
          number(b[2]), number(b[3]), number(c[0]), number(c[1]), number(c[2]), number(c[3])};
}

}  // namespace tandem::forward
