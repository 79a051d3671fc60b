// The forward kernel: Algorithm 1, CTA view.
#pragma once

#include "forward/consumer.h"
#include "forward/overlap.h"
#include "forward/producer.h"
#include "forward/table.h"
#include "forward/tail.h"
#include "forward/tile_list.h"
#include "forward/transposer.h"

namespace tandem::forward {

/// Line 1: the barriers of the rings. One thread makes them, then the block may use them.
template <ForwardVariant V>
TANDEM_DEVICE void init_rings(ForwardShared<V>& shared) {
  if (hw::thread_index() == 0) {
    constexpr std::uint32_t warps = 4, consumer_warps = warps * V.consumers();
    for (auto& ring : shared.q_ring) ring.init(warps);
    shared.k_ring.init(consumer_warps);
    shared.v_ring.init(consumer_warps, V.transposes() ? transposing_warps : 1);
    if constexpr (V.transposes()) shared.rows.ring.init(transposing_warps);
    if constexpr (V.lengths == Lengths::varlen)
      for (hw::Barrier& landed : shared.tail.landed) hw::barrier_init(landed, 1);
    hw::fence_barrier_init();
  }
  hw::sync_block();
}

/// Lines 12-25 for every tile of the block.
template <ForwardVariant V>
TANDEM_DEVICE void consume(const ForwardArguments& args, ForwardShared<V>& shared, int consumer) {
  const int warp = static_cast<int>(hw::warp_index() % 4);
  const int own_row = tile::warpgroup_rows * consumer + 16 * warp + static_cast<int>(hw::lane_index()) / 4;
  ConsumerState<V> state{args, shared, Turn<V>{consumer}, own_row, {}, {}, {}, {}, {}, {}};
  state.turn.init();

  int round = 0;
  Work work = find_work<V>(args, state.rows(), round);
  while (work.exists()) {
    state.begin(work);  // line 13
    state.clear_output();
    if (walks_apart<V>) pass_by(state, work.aside.before);
    tile::wait_full(shared.q_ring[consumer], state.at.q);  // line 14
    if (work.walk.count > 0) {
      work = attend(state, work, round);  // lines 15-23
    } else {
      hw::sync_warp();  // no WGMMA makes all lanes leave the wait before one of them gives the slot back
      release_queries(state);
      store_tile(state, work, state.softmax);  // lines 24, 25
      work = find_work<V>(args, state.rows(), ++round);
    }
  }
  finish_storing_output<V>();
}

/// The body of the kernel; the trampoline launches V.threads() threads a block.
template <ForwardVariant V>
TANDEM_DEVICE void forward_kernel(const ForwardArguments& args) {
  auto& shared = hw::shared_memory<ForwardShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes);
  init_rings(shared);
  hw::release_next_grid();  // its blocks may take the places of those that end, and wait there
  hw::wait_for_prior_grid();

  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {  // line 2
    hw::set_role("producer");
    hw::release_registers<V.producer_registers()>();  // line 3
    if (hw::warp_index() == 0 && hw::elect_one()) {
      hw::prefetch_map(args.q);
      hw::prefetch_map(args.k);
      hw::prefetch_map(args.v);
      produce<V>(args, shared);  // lines 4-10
    }
    if constexpr (V.lengths == Lengths::varlen)
      if (hw::warp_index() == 1) clear_tails<V>(args, shared);
    if constexpr (V.transposes()) {
      if (hw::warp_index() > 0) {
        hw::set_role("transposer");
        transpose<V>(args, shared, static_cast<int>(hw::warp_index()) - 1);
      }
    }
  } else {  // line 11
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_registers()>();  // line 12
    consume<V>(args, shared, warpgroup - 1);
  }
}

/// As the launcher finds it, and the kernel that lists tiles.
template <ForwardVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(ForwardShared<V>);
  static TANDEM_DEVICE void run(const ForwardArguments& args) { forward_kernel<V>(args); }
};
template <ListVariant V>
struct ListBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const ListArguments& args) { list_tiles(args.forward, args.tile_queries); }
};

}  // namespace tandem::forward
