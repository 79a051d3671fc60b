// Pingpong: one consumer's softmax at a time.
//
// Left alone, the two consumers of a tile of keys fall into step, both in their softmax and then both waiting
// for the tensor cores. Named barriers make them take turns, so that one's products run beside the other's
// softmax. Source: FlashAttention-3, section 3.1, "Pingpong scheduling", for its forward pass.
#pragma once

#include "backward/variant.h"
#include "hw/hw.h"

namespace tandem::backward {

/// Named barriers of the backward; 0 is the block barrier.
enum class NamedBarrier : std::uint32_t { softmax_of_first_consumer = 1 };

template <BackwardVariant V>
struct Pingpong {
  int consumer;

  /// With a cap it costs registers that are not there; where dQ is another kernel's it was not measured.
  static constexpr bool active = V.dq_sums == DqSums::added && !V.softcap;
  static constexpr std::uint32_t threads = V.consumers * hw::warpgroup_size;
  static_assert(V.consumers == 2, "who waits and who passes");

  TANDEM_DEVICE static std::uint32_t barrier_of(int consumer) {
    return static_cast<std::uint32_t>(NamedBarrier::softmax_of_first_consumer) +
           static_cast<std::uint32_t>(consumer);
  }
  /// Once: somebody has to let the first in.
  TANDEM_DEVICE void init() const {
    if constexpr (active) {
      if (consumer == 1) hw::arrive_named(barrier_of(0), threads);
    }
  }
  TANDEM_DEVICE void take() const {
    if constexpr (active) hw::sync_named(barrier_of(consumer), threads);
  }
  TANDEM_DEVICE void pass() const {
    if constexpr (active) hw::arrive_named(barrier_of(1 - consumer), threads);
  }
};

}  // namespace tandem::backward
