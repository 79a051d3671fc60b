// A pipeline of stages that some warps of a block fill with ordinary stores and others empty.
#pragma once

#include "hw/hw.h"
#include "tile/pipeline.h"

namespace tandem::tile {

/// Barriers of `stages` stages.
template <int stages>
struct Handover {
  hw::Barrier filled[stages];   ///< completes when all that fill the stage have
  hw::Barrier emptied[stages];  ///< completes when all that read it have

  /// One thread: how many arrivals fill a stage, and how many free it.
  TANDEM_DEVICE void init(std::uint32_t fills, std::uint32_t releases) {
    for (int i = 0; i < stages; ++i) {
      hw::barrier_init(filled[i], fills);
      hw::barrier_init(emptied[i], releases);
    }
  }
  TANDEM_DEVICE void wait_filled(const PipelineState<stages>& at) {
    hw::barrier_wait(filled[at.stage], at.parity);
  }
  /// At once in the first round.
  TANDEM_DEVICE void wait_emptied(const PipelineState<stages>& at) {
    hw::barrier_wait(emptied[at.stage], at.parity ^ 1u);
  }
  /// Warp: its ordinary stores to the stage are done; the async proxy may read them as well.
  TANDEM_DEVICE void fill(const PipelineState<stages>& at) {
    hw::fence_async_proxy();
    hw::sync_warp();
    if (hw::lane_index() == 0) hw::barrier_arrive(filled[at.stage]);
  }
  /// Warp: it has read the stage.
  TANDEM_DEVICE void release(const PipelineState<stages>& at) {
    hw::sync_warp();
    if (hw::lane_index() == 0) hw::barrier_arrive(emptied[at.stage]);
  }
};

}  // namespace tandem::tile
