// The overlap policy of a variant.
#pragma once

#include "forward/overlap_serial.h"
#include "forward/overlap_three_stage.h"
#include "forward/overlap_two_stage.h"

namespace tandem::forward {

/// Algorithm 1, lines 15-23, or what Algorithm 2 or 4 puts in their place. `meanwhile` runs once: while
/// the tile's last product is in flight, where registers allow.
template <ForwardVariant V, typename Meanwhile>
TANDEM_DEVICE void attend(ConsumerState<V>& state, const Meanwhile& meanwhile) {
  if constexpr (V.overlap == Overlap::serial) attend_serial(state, meanwhile);
  if constexpr (V.overlap == Overlap::two_stage) attend_two_stage(state, meanwhile);
  if constexpr (V.overlap == Overlap::three_stage) attend_three_stage(state, meanwhile);
}

}  // namespace tandem::forward
