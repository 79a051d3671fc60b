// The kernel of tiles of keys: Algorithm 3. A block of the grid takes one tile after another: while it stores
// the gradients of one, the next one's loads are on their way.
#pragma once

#include "backward/dq_writer.h"
#include "backward/group_splits.h"
#include "backward/keys_pipelined.h"
#include "backward/keys_producer.h"
#include "backward/keys_serial.h"

namespace tandem::backward {

/// Line 4. One thread makes the barriers, then the block may use them.
template <BackwardVariant V>
TANDEM_DEVICE void init_barriers(KeysShared<V>& shared) {
  if (hw::thread_index() == 0) {
    constexpr std::uint32_t warps = 4, consumer_warps = warps * V.consumers;
    shared.k_pipeline.init(consumer_warps);
    shared.v_pipeline.init(consumer_warps);
    shared.q_pipeline.init(consumer_warps);
    shared.dout_pipeline.init(consumer_warps);
    shared.dq_pipelines.ds.init(consumer_warps, consumer_warps);
    for (auto& pipeline : shared.dq_pipelines.part) pipeline.init(warps, 1);
    for (auto& barrier : shared.dq_pipelines.sums) hw::barrier_init(barrier, 1);
    for (auto& finished : shared.dq_pipelines.finished) finished.pipeline.init(1, 1);
    constexpr std::uint32_t writers_and_counter = V.consumers + 1;
    shared.dq_pipelines.taken.init(consumer_warps + writers_and_counter);
    hw::fence_barrier_init();
  }
  hw::sync_block();
}

/// Lines 16-29 for a tile, and dK and dV to global memory. Returns which one it was: nothing is kept in
/// registers.
template <BackwardVariant V>
TANDEM_DEVICE int consume_tile(KeysState<V>& state) {
  const BackwardArguments& args = state.args;
  TANDEM_UNROLL
  for (int i = 0; i < V.head_dim / 2; ++i) state.dk[i] = state.dv[i] = 0.f;  // line 16
  tile::consumer_wait(state.shared.k_pipeline, state.keys_at());             // line 17
  tile::consumer_wait(state.shared.v_pipeline, state.keys_at());
  if constexpr (V.kernel == Kernel::keys_serial) {
    walk_serial(state);
  } else {
    walk_pipelined(state);
  }
  const auto [first, length] = rows_of_keys<V>(args, state.work());
  const GradientRows rows{state.work().batch, state.work().kv_head, first, state.own_key(), length};
  const int number = state.work().number;
  state.shared.dq_pipelines.taken.release(Listener::warp);
  hand_over<V>(args, args.dv, rows, 1.f, state.dv);
  hand_over<V>(args, args.dk, rows, args.scale, state.dk);
  return number;
}

/// Lines 15-29.
template <BackwardVariant V>
TANDEM_DEVICE void consume_keys(const BackwardArguments& args, KeysShared<V>& shared, int consumer) {
  KeysState<V> state{args, shared, consumer, 0, {}, {}};
  if constexpr (V.kernel != Kernel::keys_serial) begin_pipelined(state);
  int number = 0;
  while (shared.dq_pipelines.taken.wait_told(number)) number = consume_tile(state) + 1;
}

/// The producer warpgroup's warps: one takes tiles and loads, one for each consumer writes its parts of dQ,
/// one counts what these have finished.
template <BackwardVariant V>
TANDEM_DEVICE void produce_keys(const BackwardArguments& args, KeysShared<V>& shared) {
  const int warp = static_cast<int>(hw::warp_index());
  if (!hw::elect_one()) return;
  if (warp == 0) {
    KeysProducer<V, KeysShared<V>> producer{args, shared};
    for_each_taken_tile<V>(args, shared.dq_pipelines.taken,
                           [&](const KeyWork& work, const auto& tell) { producer.produce_tile(work, tell); });
    return;
  }
  TakenTiles& taken = shared.dq_pipelines.taken;
  DqWriter<V> writer{args, shared, warp - 1};
  tile::PipelineState<1> counted;
  for (int number = 0; taken.wait_told(number); ++number) {
    if (warp <= V.consumers) {
      writer.write_tile(taken);
    } else {
      const int steps = taken.work.end_step - taken.work.first_step;
      taken.release(Listener::thread);
      count_visits<V>(args, shared, steps, counted);
    }
  }
}

/// The body of the kernel; the trampoline launches V.threads() threads a block.
template <BackwardVariant V>
TANDEM_DEVICE void keys_kernel(const BackwardArguments& args) {
  auto& shared = hw::shared_memory<KeysShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes);
  init_barriers(shared);
  prefetch_maps(args);
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {  // lines 5, 30
    hw::set_role("producer");
    hw::release_registers<V.producer_registers>();  // line 6
    produce_keys<V>(args, shared);
  } else {  // line 14
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_registers>();  // line 15
    consume_keys<V>(args, shared, warpgroup - 1);
  }
}

}  // namespace tandem::backward
