// A ring of slots that some warps of a block fill with ordinary stores and others empty.
#pragma once

#include "hw/hw.h"
#include "tile/ring.h"

namespace tandem::tile {

/// Barriers of `stages` slots.
template <int stages>
struct Handover {
  hw::Barrier filled[stages];   ///< completes when all that fill the slot have
  hw::Barrier emptied[stages];  ///< completes when all that read it have

  /// One thread: how many arrivals fill a slot, and how many free it.
  TANDEM_DEVICE void init(std::uint32_t fills, std::uint32_t releases) {
    for (int i = 0; i < stages; ++i) {
      hw::barrier_init(filled[i], fills);
      hw::barrier_init(emptied[i], releases);
    }
  }
  TANDEM_DEVICE void wait_filled(const RingPosition<stages>& at) {
    hw::barrier_wait(filled[at.slot], at.parity);
  }
  /// At once in the first round.
  TANDEM_DEVICE void wait_emptied(const RingPosition<stages>& at) {
    hw::barrier_wait(emptied[at.slot], at.parity ^ 1u);
  }
  /// Warp: its ordinary stores to the slot are done; the async proxy may read them as well.
  TANDEM_DEVICE void fill(const RingPosition<stages>& at) {
    hw::fence_async_proxy();
    hw::sync_warp();
    if (hw::lane_index() == 0) hw::barrier_arrive(filled[at.slot]);
  }
  /// Warp: it has read the slot.
  TANDEM_DEVICE void release(const RingPosition<stages>& at) {
    hw::sync_warp();
    if (hw::lane_index() == 0) hw::barrier_arrive(emptied[at.slot]);
  }
};

}  // namespace tandem::tile
