// The kernel of a tile of keys: Algorithm 3, one tile for each block of the grid.
#pragma once

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
    if constexpr (adds_dq<V>) {
      shared.dq.ds_pipeline.init(consumer_warps, consumer_warps);
      for (auto& pipeline : shared.dq.part_pipeline) pipeline.init(warps, 1);
    }
    hw::fence_barrier_init();
  }
  hw::sync_block();
}

/// Lines 15-29, and dK and dV to global memory.
template <BackwardVariant V>
TANDEM_DEVICE void consume_keys(const BackwardArguments& args, KeysShared<V>& shared, const KeyWork& work,
                                int consumer) {
  const int own_key = work.first_key + tile::warpgroup_rows * consumer +
                      16 * static_cast<int>(hw::warp_index() % 4) + static_cast<int>(hw::lane_index()) / 4;
  KeysState<V> state{args, shared, consumer, KeyLimits::of(args.extent, own_key), 0, {}, {}};
  TANDEM_UNROLL
  for (int i = 0; i < V.head_dim / 2; ++i) state.dk[i] = state.dv[i] = 0.f;  // line 16
  tile::consumer_wait(shared.k_pipeline, tile::PipelineState<1>{});          // line 17
  tile::consumer_wait(shared.v_pipeline, tile::PipelineState<1>{});
  if constexpr (V.kernel == Kernel::keys_serial) {
    walk_serial(state, work);
  } else {
    walk_pipelined(state, work);
  }
  const GradientRows rows{work.batch, work.kv_head, own_key, args.extent.k_len};
  store_gradient<V.operand>(args.dv, rows, args.extent.head_dim, 1.f, state.dv);
  store_gradient<V.operand>(args.dk, rows, args.extent.head_dim, args.scale, state.dk);
}

/// The producer warpgroup's warps: one loads, one for each consumer adds its parts of dQ to the sums.
template <BackwardVariant V>
TANDEM_DEVICE void produce_keys(const BackwardArguments& args, KeysShared<V>& shared, const KeyWork& work) {
  const int warp = static_cast<int>(hw::warp_index());
  if (!hw::elect_one()) return;
  if (warp == 0) {
    hw::prefetch_map(args.q);
    hw::prefetch_map(args.dout);
    produce<V>(args, shared, work);
  } else if (warp <= V.consumers) {
    if constexpr (adds_dq<V>) write_dq<V>(args, shared, work, warp - 1);
  }
}

/// The body of the kernel; the trampoline launches V.threads() threads a block.
template <BackwardVariant V>
TANDEM_DEVICE void keys_kernel(const BackwardArguments& args) {
  auto& shared = hw::shared_memory<KeysShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes);
  init_barriers(shared);
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const core::Tile tile = args.schedule.tile(static_cast<int>(hw::block_index()));
  if (!tile.exists()) return;
  const KeyWork work = key_work<V>(args, tile);

  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {  // lines 5, 30
    hw::set_role("producer");
    hw::release_registers<V.producer_registers>();  // line 6
    produce_keys<V>(args, shared, work);
  } else {  // line 14
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_registers>();  // line 15
    consume_keys<V>(args, shared, work, warpgroup - 1);
  }
}

}  // namespace tandem::backward
