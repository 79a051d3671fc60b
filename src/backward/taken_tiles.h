// Which tiles of keys a block of the grid works on: it takes the next one when it is free.
//
// Tiles are taken in their order, so those before a tile have begun, whichever blocks are resident. A tile
// may wait for them (ring.h).
#pragma once

#include "backward/work.h"
#include "tile/handover.h"

namespace tandem::backward {

/// Who is told of a tile: a warp, or a thread alone.
enum class Listener { warp, thread };

/// The tile on its way from the producer, who takes it, to the other warps. These read it where it is, for
/// registers are few.
struct TakenTiles {
  KeyWork work;
  tile::Handover<1> pipeline;

  /// So many are told.
  TANDEM_DEVICE void init(std::uint32_t listeners) { pipeline.init(1, listeners); }
  /// The producer: tells of a tile, when nobody needs the one before any more.
  TANDEM_DEVICE void tell(const KeyWork& next) {
    const auto at = tile::PipelineState<1>::of(next.number);
    pipeline.wait_emptied(at);
    work = next;
    hw::barrier_arrive(pipeline.filled[0]);
  }
  /// Waits for the block's tile number `number`, from 0 on; false: there is none, as there are no more.
  TANDEM_DEVICE bool wait_told(int number) {
    pipeline.wait_filled(tile::PipelineState<1>::of(number));
    return work.tile != KeyWork::none;
  }
  /// Its tile is not needed any more.
  TANDEM_DEVICE void release(Listener listener) {
    if (listener == Listener::warp) {
      pipeline.release({});
    } else {
      hw::barrier_arrive(pipeline.emptied[0]);
    }
  }
};

/// Calls visit(work, tell) for each tile that the block takes, which is to call tell() so that the other
/// warps learn of it. The producer's thread. A tile is taken when its loads can start and not before: later
/// ones wait for it.
template <BackwardVariant V, typename Visit>
TANDEM_DEVICE void for_each_taken_tile(const BackwardArguments& args, TakenTiles& taken, const Visit& visit) {
  int number = 0, steps = 0;
  for (;;) {
    const auto position = static_cast<int>(hw::take_number(args.ring.next_position));
    if (position >= key_positions<V>(args)) break;
    const ScheduledTile scheduled = key_tile<V>(args, position);
    if (!scheduled.tile.exists()) continue;
    const KeyWork work = key_work<V>(args, scheduled, number++, steps);
    steps = work.end_step;
    visit(work, [&] { taken.tell(work); });
  }
  KeyWork end{};
  end.tile = KeyWork::none, end.number = number;
  taken.tell(end);
}

}  // namespace tandem::backward
