// Tiles of variable lengths are handed out as blocks ask for them: the tile scheduler's warp.
//
// Who asks last is served last, so blocks end together, whatever their tiles and their multiprocessors take.
// Blocks that find room only when a decoding step ends beside them (chip_share.h) take part from then on. One
// thread of the producer's warpgroup takes places of the list (tile_list.h) by a counter, and brings the
// tiles there into shared memory, where all of the block's agents read them.
#pragma once

#include "forward/arguments.h"
#include "forward/listed_tile.h"
#include "tile/pipeline.h"

namespace tandem::forward {

/// In shared memory: the tiles that the block took last. Four places are enough: the tile of a round is read
/// until its output is stored, beside the first block of the next one. The fourth after it is wanted when the
/// queries of the third are on their way, so consumers have given back those of the second.
struct TileQueue {
  static constexpr int places = 4;
  using At = tile::PipelineState<places>;
  /// Who asks, or gives queries back, of a warp: racecheck takes the last lane for the reader of what all
  /// lanes read (docs/performance.md).
  static constexpr std::uint32_t asking_lane = hw::warp_size - 1;

  ListedTile tile[places];
  hw::Barrier told[places];
  hw::Barrier wanted;  ///< the next tile, by both producers and by who clears tails

  /// One thread of the block.
  TANDEM_DEVICE void init() {
    for (hw::Barrier& barrier : told) hw::barrier_init(barrier, 1);
    hw::barrier_init(wanted, 3);
  }
  /// Warp, once a round: it has its tile, and wants the next one soon.
  TANDEM_DEVICE void ask() {
    if (hw::lane_index() == asking_lane) hw::barrier_arrive(wanted);
  }
  TANDEM_DEVICE void tell(int round, const ListedTile& of_round) {
    const At at = At::of(round);
    tile[at.stage] = of_round;
    hw::barrier_arrive(told[at.stage]);
  }
  /// Warp: waits until it is told the round's tile, and returns its place. All lanes have read what comes
  /// before when one of them asks, or gives queries back.
  TANDEM_DEVICE int place_of_round(int round) {
    const At at = At::of(round);
    hw::barrier_wait(told[at.stage], at.parity);
    hw::sync_warp();
    return at.stage;
  }
};

/// The places of the list that one block takes. The last one that asks leaves the counter as it was, for the
/// next call with the same list: each block asks until it is told of no tile, but for those whose number is
/// no place.
struct ListPlaces {
  std::uint32_t* header;
  std::uint32_t tiles, begin_at_once;

  TANDEM_DEVICE explicit ListPlaces(const VarlenArguments& varlen)
      : header(reinterpret_cast<std::uint32_t*>(varlen.tile_list)) {
    const bool is_own = hw::load_global(header + 3) == varlen.list_key;
    tiles = is_own ? hw::load_global(header) : 0;
    begin_at_once = is_own ? hw::load_global(header + 1) : hw::grid_size();
  }
  TANDEM_DEVICE std::uint32_t first() {
    return hw::block_index() < begin_at_once ? hw::block_index() : next();
  }
  TANDEM_DEVICE std::uint32_t next() {
    const std::uint32_t number = hw::take_number(header + 2);
    if (number + 1 == tiles + hw::grid_size() - begin_at_once) hw::store_global(header + 2, 0u);
    return begin_at_once + number;
  }
};

/// The scheduler's thread, for all tiles of the block.
TANDEM_DEVICE void hand_out_tiles(const VarlenArguments& varlen, TileQueue& queue) {
  ListPlaces places(varlen);
  const std::uint32_t tiles = places.tiles;
  std::uint32_t place = places.first();
  int round = 0;
  for (; place < tiles; ++round, place = places.next()) {
    queue.tell(round, load_listed(varlen.tile_list, static_cast<int>(place)));
    hw::barrier_wait(queue.wanted, static_cast<std::uint32_t>(round) % 2u);
  }
  ListedTile none{};
  none.m_block = core::Tile::none;
  queue.tell(round, none);
}

}  // namespace tandem::forward
