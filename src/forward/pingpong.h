// Pingpong: consumer warpgroups take turns at the tensor cores.
//
// The products of one warpgroup (P V of a block, and Q K^T of the next) are issued in one go while the others
// are in their softmax; named barriers pass the turn around. Orthogonal to the overlap policy. Source:
// FlashAttention-3, section 3.1, "Pingpong scheduling".
#pragma once

#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// Named barriers of the forward; 0 is the block barrier.
enum class NamedBarrier : std::uint32_t { turn_of_first_consumer = 1 };

template <ForwardVariant V>
struct Pingpong {
  int consumer;

  static constexpr bool active = V.turn == TurnPolicy::pingpong;
  static constexpr std::uint32_t threads = 2 * hw::warpgroup_size;  // who waits and who passes

  TANDEM_DEVICE static std::uint32_t barrier_of(int consumer) {
    return static_cast<std::uint32_t>(NamedBarrier::turn_of_first_consumer) +
           static_cast<std::uint32_t>(consumer);
  }
  /// Once: somebody has to pass the first turn.
  TANDEM_DEVICE void init() const {
    if constexpr (active) {
      if (consumer == V.consumers() - 1) hw::arrive_named(barrier_of(0), threads);
    }
  }
  /// Waits for the turn.
  TANDEM_DEVICE void take() const {
    if constexpr (active) hw::sync_named(barrier_of(consumer), threads);
  }
  /// Passes it on. What was issued before goes first.
  TANDEM_DEVICE void pass() const {
    if constexpr (active)
      hw::arrive_named(barrier_of(consumer + 1 == V.consumers() ? 0 : consumer + 1), threads);
  }
};

}  // namespace tandem::forward
