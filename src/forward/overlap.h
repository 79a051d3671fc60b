// The overlap policy of a variant.
#pragma once

#include "forward/overlap_serial.h"
#include "forward/overlap_three_stage.h"
#include "forward/overlap_two_stage.h"

namespace tandem::forward {

/// Algorithm 1, lines 15-25, or what Algorithm 2 or 4 puts in their place, for the tile in `work`, which has
/// keys and whose queries are full; and for more tiles as long as they can follow without a gap. Returns what
/// comes next.
template <ForwardVariant V>
TANDEM_DEVICE Work attend(ConsumerState<V>& state, const Work& work, int& round) {
  if constexpr (V.overlap == Overlap::two_stage) {
    return attend_two_stage(state, work, round);
  } else {
    Work next;
    const auto find_next = [&] { next = find_work<V>(state.args, state.rows(), ++round); };
    if constexpr (V.overlap == Overlap::serial) attend_serial(state, find_next);
    if constexpr (V.overlap == Overlap::three_stage) attend_three_stage(state, find_next);
    store_own_rows(state, work, statistics_of<V>(state.args, state.softmax));
    return next;
  }
}

}  // namespace tandem::forward
