// Whose turn it is: the products of one warpgroup (P V of a block, and Q K^T of the next) are issued in one
// go while the others are in their softmax. Orthogonal to the overlap policy.
#pragma once

#include "forward/variant.h"
#include "tile/pingpong.h"

namespace tandem::forward {

/// Named barriers of the forward; 0 is the block barrier.
enum class NamedBarrier : std::uint32_t { turn_of_first_consumer = 1, consumers_of_same_rows = 4 };

template <ForwardVariant V>
struct Pingpong : tile::Turns<V.consumers(), static_cast<std::uint32_t>(NamedBarrier::turn_of_first_consumer),
                              V.turn == TurnPolicy::pingpong> {
  TANDEM_DEVICE void pass() const {
    this->pass_to(this->consumer + 1 == V.consumers() ? 0 : this->consumer + 1);
  }
};

}  // namespace tandem::forward
