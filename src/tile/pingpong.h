// Pingpong: consumer warpgroups take turns, passed around by named barriers. What a turn is of, the kernel
// says: of the tensor cores, while the others are in their softmax, or of the softmax.
//
// Source: FlashAttention-3, section 3.1, "Pingpong scheduling".
#pragma once

#include <cstdint>

#include "hw/hw.h"

namespace tandem::tile {

/// Where not `active`, all of it is nothing. `first_barrier`: of the first consumer's turn; the others'
/// follow.
template <int consumers, std::uint32_t first_barrier, bool active>
struct Turns {
  int consumer;

  static constexpr std::uint32_t threads = 2 * hw::warpgroup_size;  // who waits and who passes

  TANDEM_DEVICE static std::uint32_t barrier_of(int consumer) {
    return first_barrier + static_cast<std::uint32_t>(consumer);
  }
  /// Once: somebody has to pass the first turn.
  TANDEM_DEVICE void init() const {
    if constexpr (active) {
      if (consumer == consumers - 1) hw::arrive_named(barrier_of(0), threads);
    }
  }
  /// Waits for the turn.
  TANDEM_DEVICE void take() const {
    if constexpr (active) hw::sync_named(barrier_of(consumer), threads);
  }
  /// Passes it on to the consumer `next`. What was issued before goes first.
  TANDEM_DEVICE void pass_to(int next) const {
    if constexpr (active) hw::arrive_named(barrier_of(next), threads);
  }
};

}  // namespace tandem::tile
