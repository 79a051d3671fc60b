// The s-stage circular buffer in shared memory, with full and empty barriers (Algorithm 1, line 1).
#pragma once

#include "hw/hw.h"

namespace tandem::tile {

/// Barriers of a ring of `stages` slots.
template <int stages>
struct Ring {
  hw::Barrier full[stages];   ///< completes when the slot's bytes have landed
  hw::Barrier empty[stages];  ///< completes when all consumers have released the slot

  /// One thread: `releases` is how many arrivals free a slot, `fills` how many fill it.
  TANDEM_DEVICE void init(std::uint32_t releases, std::uint32_t fills = 1) {
    for (int i = 0; i < stages; ++i) {
      hw::barrier_init(full[i], fills);
      hw::barrier_init(empty[i], releases);
    }
  }
};

/// Where an agent stands in a ring: the slot, and the parity that its use of the slot waits for.
template <int stages>
struct RingPosition {
  int slot = 0;
  std::uint32_t parity = 0;

  /// Of use number `use`, from 0 on: for who walks several rings in step, and would keep all positions in
  /// registers.
  TANDEM_DEVICE static RingPosition of(int use) {
    return {use % stages, static_cast<std::uint32_t>(use) / stages % 2u};
  }

  TANDEM_DEVICE void advance() {
    slot = slot + 1 == stages ? 0 : slot + 1;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

/// Consumer: waits until the slot is full.
template <int stages>
TANDEM_DEVICE void wait_full(Ring<stages>& ring, const RingPosition<stages>& at) {
  hw::barrier_wait(ring.full[at.slot], at.parity);
}

/// Producer: waits until the slot is empty (at once in the first round), then announces `bytes` for it.
template <int stages>
TANDEM_DEVICE void acquire_slot(Ring<stages>& ring, const RingPosition<stages>& at, std::uint32_t bytes) {
  hw::barrier_wait(ring.empty[at.slot], at.parity ^ 1u);
  hw::barrier_arrive_expecting(ring.full[at.slot], bytes);
}

/// Consumer warp: gives the slot back. What the warp's WGMMAs read of it has to be complete.
template <int stages>
TANDEM_DEVICE void release_slot(Ring<stages>& ring, const RingPosition<stages>& at) {
  if (hw::lane_index() == 0) hw::barrier_arrive(ring.empty[at.slot]);
}

}  // namespace tandem::tile
