// Whose turn it is: one consumer's softmax at a time.
//
// Left alone, the two consumers of a tile fall into step, both in their softmax and then both waiting
// for the tensor cores. In turns, one's products run beside the other's softmax.
#pragma once

#include "backward/variant.h"
#include "tile/pingpong.h"

namespace tandem::backward {

/// Named barriers of the backward; 0 is the block barrier.
enum class NamedBarrier : std::uint32_t { softmax_of_first_consumer = 1, sums_of_first_consumer = 3 };

/// With a cap it costs registers that are not there.
template <BackwardVariant V>
struct Pingpong
    : tile::Turns<V.consumers, static_cast<std::uint32_t>(NamedBarrier::softmax_of_first_consumer),
                  !V.softcap> {
  TANDEM_DEVICE void pass() const { this->pass_to(1 - this->consumer); }
  static_assert(V.consumers == 2);
};

}  // namespace tandem::backward
