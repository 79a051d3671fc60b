// The forward kernel: Algorithm 1, CTA view.
#pragma once

#include "forward/append.h"
#include "forward/consumer.h"
#include "forward/list_kernel.h"
#include "forward/overlap.h"
#include "forward/producer.h"
#include "forward/table.h"
#include "forward/tail.h"
#include "forward/tile_list.h"
#include "forward/transposer.h"
#include "forward/varlen_producer.h"
#include "forward/wide_consumer.h"

namespace tandem::forward {

inline constexpr std::uint32_t ones_of_e4m3 = 0x38383838;

/// The rows under V^T whose products are the sums of probabilities. No box reaches them. Under second terms
/// they are zeros, so that each probability is summed once.
template <ForwardVariant V>
TANDEM_DEVICE void write_ones(ForwardShared<V>& shared) {
  constexpr int chunks = V.words(V.block_n) / tile::chunk_columns;
  const int thread = static_cast<int>(hw::thread_index());
  for (int i = thread; i < V.kv_stages * V.rows_of_ones() * chunks; i += V.threads()) {
    const int chunk = i % chunks, row = i / chunks % V.rows_of_ones(), stage = i / chunks / V.rows_of_ones();
    const int first_row = V.value_dim + row, column = tile::chunk_columns * chunk;
    shared.v[stage].chunk(first_row, column) = {{ones_of_e4m3, ones_of_e4m3, ones_of_e4m3, ones_of_e4m3}};
    if constexpr (V.value_terms == 2) shared.second.v[stage].chunk(first_row, column) = {};
  }
}

/// What no box reaches of tiles that have more columns than rows: products read it, so it has to be 0.
template <ForwardVariant V>
TANDEM_DEVICE void clear_columns(const ForwardArguments& args, ForwardShared<V>& shared) {
  if (!args.narrow_rows) return;
  // Asked anew, or ptxas keeps the index for later in a register that kernels do not have.
  const auto thread = static_cast<int>(hw::thread_index_anew());
  for (auto& tile : shared.q) tile::clear_columns_beyond(args.q_panels<true>(), tile, thread, V.threads());
  for (auto& tile : shared.k) tile::clear_columns_beyond(args.k_panels<true>(), tile, thread, V.threads());
  for (auto& tile : shared.v) tile::clear_columns_beyond(args.v_panels<true>(), tile, thread, V.threads());
  hw::fence_async_proxy();
}

/// Line 1: the barriers of the pipelines. One thread makes them, then the block may use them.
template <ForwardVariant V>
TANDEM_DEVICE void init_pipelines(const ForwardArguments& args, ForwardShared<V>& shared) {
  if (hw::thread_index() == 0) {
    constexpr std::uint32_t warps = 4, consumer_warps = warps * V.consumers();
    for (auto& pipeline : shared.q_pipeline) pipeline.init(consumer_warps / V.query_tiles());
    shared.k_pipeline.init(consumer_warps);
    shared.v_pipeline.init(consumer_warps, V.transposes() ? transposing_warps : 1);
    if constexpr (V.transposes()) shared.rows.pipeline.init(transposing_warps);
    if constexpr (V.lengths == Lengths::varlen) {
      for (hw::Barrier& landed : shared.tail.landed) hw::barrier_init(landed, 1);
      shared.queue.init();
    }
    hw::fence_barrier_init();
  }
  if constexpr (V.codes()) {
    write_ones<V>(shared);
    hw::fence_async_proxy();
  }
  if constexpr (V.boxes_end_with_rows()) clear_columns<V>(args, shared);
  hw::sync_block();
}

/// Lines 12-25 for every tile of the block.
template <ForwardVariant V>
TANDEM_DEVICE void consume(const ForwardArguments& args, ForwardShared<V>& shared, int consumer) {
  const int warp = static_cast<int>(hw::warp_index() % 4);
  const int own_row =
      tile::warpgroup_rows * consumer + tile::upper_row(warp, static_cast<int>(hw::lane_index()));
  ConsumerState<V> state{args, shared, Pingpong<V>{consumer}, own_row, {}, {}, {}, {}, {}, {}, {}, {}};
  state.pingpong.init();

  int round = 0;
  Work work = find_first_work<V>(args, state.rows(), round);
  while (work.exists()) {
    state.begin(work);  // line 13
    state.clear_output();
    if (V.decisions.loops_apart) skip_blocks(state, work.aside.before);
    tile::consumer_wait(shared.q_pipeline[consumer], state.at.q);  // line 14
    if (work.loop.count > 0) {
      work = attend(state, work, round);  // lines 15-23
    } else {
      hw::sync_warp();  // no WGMMA makes all lanes leave the wait before one of them gives the stage back
      release_queries(state);
      store_own_rows(state, work, statistics_of<V>(state.args, state.softmax));  // lines 24, 25
      work = find_work<V>(args, state.rows(), ++round);
    }
  }
  finish_storing_output<V>();
}

/// The body of the kernel; the trampoline launches V.threads() threads a block.
template <ForwardVariant V>
TANDEM_DEVICE void forward_kernel(const ForwardArguments& args) {
  auto& shared = hw::shared_memory<ForwardShared<V>>();
  static_assert(sizeof(shared) <= V.shared_limit());
  init_pipelines<V>(args, shared);
  hw::release_next_grid();  // its blocks may take the places of those that end, and wait there
  wait_for_grids_before<V>(args, Moment::start);

  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {  // line 2
    hw::set_role("producer");
    hw::release_registers<V.producer_registers()>();  // line 3
    if (hw::warp_index() == 0 && hw::elect_one()) {
      hw::prefetch_map(args.q);
      hw::prefetch_map(args.k);
      hw::prefetch_map(args.v);
      if constexpr (V.lengths == Lengths::uniform) produce<V>(args, shared);  // lines 4-10
    }
    if constexpr (V.lengths == Lengths::varlen) {
      if (hw::warp_index() == 0) produce_varlen<V, Brings::queries_and_keys>(args, shared);
      if (hw::warp_index() == 3) produce_varlen<V, Brings::values>(args, shared);
      if (hw::warp_index() == 1) clear_tails<V>(args, shared);
      if (hw::warp_index() == 2) {
        if (hw::elect_one()) hand_out_tiles(args.varlen, shared.queue);
        hw::sync_warp();  // lanes that wait for a grid hold up the others of their warp
      }
    }
    if constexpr (V.transposes()) {
      if (hw::warp_index() > 0) {
        hw::set_role("transposer");
        transpose<V>(args, shared, static_cast<int>(hw::warp_index()) - 1);
      }
    }
  } else {  // line 11
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_registers()>();  // line 12
    // Where lengths vary asked once more: there is no register to keep it in.
    const int own = V.lengths == Lengths::varlen ? static_cast<int>(hw::warpgroup_index()) : warpgroup;
    if constexpr (V.shares_rows()) {
      consume_wide<V>(args, shared, own - 1);
    } else {
      consume<V>(args, shared, own - 1);
    }
  }
  wait_for_grids_before<V>(args, Moment::end);
}

/// As the launcher finds it, and the kernels ahead of it.
template <ForwardVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(ForwardShared<V>);
  static TANDEM_DEVICE void run(const ForwardArguments& args) { forward_kernel<V>(args); }
};
template <ListVariant V>
struct ListBody {
  static constexpr int shared_bytes = sizeof(SequenceTable);
  static TANDEM_DEVICE void run(const ListArguments& args) {
    list_all(args, hw::shared_memory<SequenceTable>());
  }
};
template <AppendVariant V>
struct AppendBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const AppendArguments& args) { append_and_rotate<V>(args); }
};

}  // namespace tandem::forward
