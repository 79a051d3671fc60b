// The kernel of tiles of keys: Algorithm 3. Where registers allow it, a block of the grid takes one tile
// after another: while it stores the gradients of one, the next one's loads are on their way.
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

/// Lines 16-29 for a tile, and dK and dV to global memory.
template <BackwardVariant V>
TANDEM_DEVICE void consume_tile(KeysState<V>& state, const KeyWork& work) {
  const BackwardArguments& args = state.args;
  state.own_key = work.first_key + tile::warpgroup_rows * state.consumer +
                  16 * static_cast<int>(hw::warp_index() % 4) + static_cast<int>(hw::lane_index()) / 4;
  state.kept_limits = KeyLimits::of(args.extent, state.own_key);
  state.first_step = state.step;
  TANDEM_UNROLL
  for (int i = 0; i < V.head_dim / 2; ++i) state.dk[i] = state.dv[i] = 0.f;  // line 16
  tile::consumer_wait(state.shared.k_pipeline, state.keys_at);               // line 17
  tile::consumer_wait(state.shared.v_pipeline, state.keys_at);
  if constexpr (V.kernel == Kernel::keys_serial) {
    walk_serial(state, work);
  } else {
    walk_pipelined(state, work);
  }
  release_keys(state);
  const GradientRows rows{work.batch, work.kv_head, state.own_key, args.extent.k_len};
  store_gradient<V.operand>(args.dv, rows, args.extent.head_dim, 1.f, state.dv);
  store_gradient<V.operand>(args.dk, rows, args.extent.head_dim, args.scale, state.dk);
  state.keys_at.advance();
}

/// Lines 15-29.
template <BackwardVariant V>
TANDEM_DEVICE void consume_keys(const BackwardArguments& args, KeysShared<V>& shared, int consumer) {
  KeysState<V> state{args, shared, consumer, {}, 0, {}, 0, 0, {}, {}};
  if constexpr (V.kernel != Kernel::keys_serial) begin_pipelined(state);
  for_each_key_work<V>(args, [&](const KeyWork& work) {
    find_consumer(state);
    consume_tile(state, work);
  });
}

/// The producer warpgroup's warps: one loads, one for each consumer adds its parts of dQ to the sums.
template <BackwardVariant V>
TANDEM_DEVICE void produce_keys(const BackwardArguments& args, KeysShared<V>& shared) {
  const int warp = static_cast<int>(hw::warp_index());
  if (!hw::elect_one()) return;
  if (warp == 0) {
    hw::prefetch_map(args.q);
    hw::prefetch_map(args.dout);
    KeysProducer<V, KeysShared<V>> producer{args, shared};
    for_each_key_work<V>(args, [&](const KeyWork& work) { producer.produce_tile(work); });
  } else if (warp <= V.consumers) {
    if constexpr (adds_dq<V>) write_dq<V>(args, shared, warp - 1);
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
