// The s-stage circular buffer in shared memory, with full and empty barriers (Algorithm 1, line 1).
#pragma once

#include "hw/hw.h"

namespace tandem::tile {

/// Barriers of a pipeline of `stages` stages.
template <int stages>
struct Pipeline {
  hw::Barrier full[stages];   ///< completes when the stage's bytes have landed
  hw::Barrier empty[stages];  ///< completes when all consumers have released the stage

  /// One thread: `releases` is how many arrivals free a stage, `fills` how many fill it.
  TANDEM_DEVICE void init(std::uint32_t releases, std::uint32_t fills = 1) {
    for (int i = 0; i < stages; ++i) {
      hw::barrier_init(full[i], fills);
      hw::barrier_init(empty[i], releases);
    }
  }
};

/// Where an agent stands in a pipeline: the stage, and the parity that its use of the stage waits for.
template <int stages>
struct PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;

  /// Of use number `use`, from 0 on: for who visits several pipelines in step, and would keep all positions
  /// in registers.
  TANDEM_DEVICE static PipelineState of(int use) {
    return {use % stages, static_cast<std::uint32_t>(use) / stages % 2u};
  }

  TANDEM_DEVICE void advance() {
    stage = stage + 1 == stages ? 0 : stage + 1;
    parity ^= stage == 0 ? 1u : 0u;
  }
};

/// Consumer: waits until the stage is full.
template <int stages>
TANDEM_DEVICE void consumer_wait(Pipeline<stages>& pipeline, const PipelineState<stages>& at) {
  hw::barrier_wait(pipeline.full[at.stage], at.parity);
}

/// Producer: waits until the stage is empty (at once in the first round), then announces `bytes` for it.
template <int stages>
TANDEM_DEVICE void producer_acquire(Pipeline<stages>& pipeline, const PipelineState<stages>& at,
                                    std::uint32_t bytes) {
  hw::barrier_wait(pipeline.empty[at.stage], at.parity ^ 1u);
  hw::barrier_arrive_expecting(pipeline.full[at.stage], bytes);
}

/// Consumer warp: gives the stage back, by this lane. What the warp's WGMMAs read of it has to be complete.
template <std::uint32_t lane = 0, int stages>
TANDEM_DEVICE void consumer_release(Pipeline<stages>& pipeline, const PipelineState<stages>& at) {
  if (hw::lane_index() == lane) hw::barrier_arrive(pipeline.empty[at.stage]);
}

}  // namespace tandem::tile
