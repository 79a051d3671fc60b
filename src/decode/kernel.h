// The decode kernel, and those around it: one merges what it leaves, one makes a plan for it, one clears
// counters.
#pragma once

#include <cstddef>

#include "decode/combine.h"
#include "decode/eight_bit.h"
#include "decode/paired.h"
#include "decode/partials.h"
#include "decode/plain.h"
#include "decode/prefix_list.h"
#include "decode/producer.h"
#include "decode/register_p.h"
#include "decode/shared_p.h"
#include "decode/shared_rows.h"
#include "decode/table.h"

namespace tandem::decode {

/// Visits the keys of the work tile and leaves the result complete, whichever the algorithm.
template <DecodeVariant V>
TANDEM_DEVICE void attend_and_finish(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                                     const WorkTile& work) {
  if constexpr (V.algorithm == Algorithm::plain) {
    PlainResult<V> result;
    attend_plain(consumer, work, result);
    result.complete();
    finish_work(consumer, scheduler, work, result);
  } else if constexpr (V.algorithm == Algorithm::shared_p) {
    TransposedResult<V> result;
    attend_shared_p(consumer, work, result);
    complete_shared_p(consumer, result);
    finish_work(consumer, scheduler, work, result);
  } else if constexpr (V.paired() && V.values_in_keys()) {
    attend_shared_rows_and_finish(consumer, scheduler, work);
  } else if constexpr (V.paired()) {
    attend_paired_and_finish(consumer, scheduler, work);
  } else if constexpr (V.eight_bit()) {
    EightBitResult<V> result;
    attend_eight_bit(consumer, work, result);
    complete_shared_p(consumer, result);
    finish_work(consumer, scheduler, work, result);
  } else {
    ColumnSoftmax<V.query_rows> softmax;
    WarpOutput<V> output;
    attend_register_p(consumer, work, softmax, output);
    TransposedResult<V> result;
    combine_warps(consumer, softmax, output, result);
    finish_work(consumer, scheduler, work, result);
  }
}

/// The same with a tile of so many rows, if that has room for the work's.
template <int rows, DecodeVariant V>
TANDEM_DEVICE bool attends_narrowly(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                                    const WorkTile& work) {
  constexpr DecodeVariant N = V.narrowed(rows);
  static_assert(offsetof(DecodeShared<N>, k_pipeline) == offsetof(DecodeShared<V>, k_pipeline) &&
                sizeof(DecodeShared<N>) == sizeof(DecodeShared<V>));
  if (work.row_tile > 0 || rows_of_tile<V>(consumer.args, work) > rows) return false;
  void* shared = &consumer.shared;
  Consumer<N> narrow{consumer.args, *static_cast<DecodeShared<N>*>(shared), consumer.k_at, consumer.v_at};
  narrow.load_queries(work);
  attend_and_finish(narrow, scheduler, work);
  consumer.k_at = narrow.k_at, consumer.v_at = narrow.v_at;
  return true;
}

/// Loads the work's queries, and the rest.
template <DecodeVariant V>
TANDEM_DEVICE void load_and_attend(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                                   const WorkTile& work) {
  if constexpr (V.narrows_tiles()) {
    if (attends_narrowly<8>(consumer, scheduler, work)) return;
    if (attends_narrowly<16>(consumer, scheduler, work)) return;
  }
  consumer.load_queries(work);
  attend_and_finish(consumer, scheduler, work);
}

/// Where rows have fewer columns than tiles: what no box reaches. Products read it, so it has to be 0.
/// Consumers do it while the first keys are on their way; who publishes the first queries publishes this with
/// them.
template <DecodeVariant V>
TANDEM_DEVICE void clear_columns(const DecodeArguments& args, DecodeShared<V>& shared) {
  if (!args.narrow_rows) return;
  const auto thread = static_cast<int>(hw::thread_index_anew());
  TANDEM_DONT_UNROLL
  for (auto& block : shared.k)
    for (auto& tile : block.tile)
      tile::clear_columns_beyond(args.k_panels(), tile, thread, V.consumer_threads());
  TANDEM_DONT_UNROLL
  for (auto& block : shared.v.block)
    for (auto& tile : block.tile)
      tile::clear_columns_beyond(args.v_panels(), tile, thread, V.consumer_threads());
}

template <DecodeVariant V>
TANDEM_DEVICE void consume(const DecodeArguments& args, DecodeShared<V>& shared,
                           SplitSchedulerOf<V>& scheduler) {
  Consumer<V> consumer{args, shared, {}, {}};
  if constexpr (V.boxes_end_with_rows()) clear_columns<V>(args, shared);
  if constexpr (V.splits_keys()) begin_at_own_stage(consumer);
  if constexpr (consumer.fetches_ahead) {
    typename Consumer<V>::Queries queries{};
    const bool early = scheduler.knows_stream();
    if (early && scheduler.known_stream().exists())
      consumer.fetch_queries(scheduler.known_stream_and_queries(), queries);
    WorkTile work{};
    work.sequence = -1;
    // In each round the work's keys, behind the loads of the next one's queries.
    for (;;) {
      const WorkTile next = scheduler.next();
      if (!early && next.exists()) consumer.fetch_queries(next, queries);
      if (work.exists()) attend_and_finish(consumer, scheduler, work);
      if (!next.exists()) break;
      work = next;
      consumer.place_queries(work, queries);
    }
  } else {
    for (;;) {
      const WorkTile work = scheduler.next();
      if (!work.exists()) break;
      load_and_attend(consumer, scheduler, work);
    }
  }
}

/// Roles of a kernel whose producer gives registers to its consumers. Each finds its share for itself:
/// nothing may stay in registers from before.
template <DecodeVariant V>
TANDEM_DEVICE void run_roles_of_pair(const DecodeArguments& args, DecodeShared<V>& shared) {
  constexpr std::uint32_t producer_warp = V.consumer_threads() / hw::warp_size;
  if (hw::warp_index() >= producer_warp) {
    hw::set_role("producer");
    hw::release_registers<V.producer_budget()>();
    if (hw::warp_index() > producer_warp) return;
    SplitSchedulerOf<V> scheduler(args, static_cast<int>(hw::block_index()));
    produce<V>(args, shared, scheduler);
  } else {
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_budget()>();
    SplitSchedulerOf<V> scheduler(args, static_cast<int>(hw::block_index()));
    consume<V>(args, shared, scheduler);
  }
}

/// The body of the kernel; the trampoline launches V.threads threads a block.
template <DecodeVariant V>
TANDEM_DEVICE void decode_kernel(const DecodeArguments& args) {
  auto& shared = hw::shared_memory<DecodeShared<V>>();
  static_assert(V.resident * (sizeof(shared) + 1024) <= hw::max_shared_bytes + 1024);
  if (hw::thread_index() == 0) {
    shared.k_pipeline.init(V.threads_of_block() / hw::warp_size);
    shared.v_pipeline.init(V.threads_of_block() / hw::warp_size);
    hw::fence_barrier_init();
  }
  const bool producer = hw::warp_index() == V.consumer_threads() / hw::warp_size;
  if (producer && hw::elect_one()) {
    hw::prefetch_map(args.k);
    if constexpr (!V.values_in_keys() || V.two_part_keys) hw::prefetch_map(args.v);
  }
  hw::sync_block();
  // Every block is resident from the start, so that the next grid takes nobody's place. Where it runs beside
  // this one, it reads what the grid before wrote, and does not wait for that (forward/chip_share.h).
  if constexpr (!V.lists_queries()) hw::release_next_grid();
  hw::wait_for_prior_grid();
  if constexpr (V.lists_queries()) hw::release_next_grid();
  if constexpr (V.paired()) return run_roles_of_pair(args, shared);
  SplitSchedulerOf<V> scheduler(args, static_cast<int>(hw::block_index()));
  if (producer) {
    hw::set_role("producer");
    produce<V>(args, shared, scheduler);
  } else {
    hw::set_role("consumer");
    consume<V>(args, shared, scheduler);
  }
}

/// Writes what every block of the step's grid would find: plan_words words. One block of
/// PlanVariant::threads() threads, a warp for each block of the grid in turn.
TANDEM_DEVICE void plan_kernel(const DecodeArguments& args, std::int32_t* plan) {
  for (int block = static_cast<int>(hw::warp_index()); block < args.blocks;
       block += PlanVariant::threads() / hw::warp_size) {
    SplitScheduler<true> scheduler(args, block);
    const ShareStart start = scheduler.start();
    auto* words = reinterpret_cast<std::uint32_t*>(plan);
    if (hw::lane_index() != 0) continue;
    if (block == 0) {
      hw::store_global(words, static_cast<std::uint32_t>(scheduler.total()));
      hw::store_global(words + 1, static_cast<std::uint32_t>(scheduler.flags()));
    }
    hw::store_global(words + plan_words(block), static_cast<std::uint32_t>(start.sequence));
    hw::store_global(words + plan_words(block) + 1, static_cast<std::uint32_t>(start.position));
  }
}

TANDEM_DEVICE void clear_kernel(const ClearArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();  // it may use the same workspace
  const auto own = static_cast<int>(hw::thread_index());
  if (own < args.count) hw::store_global(args.counters + own, 0u);
}

/// All as the launcher finds them.
template <DecodeVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(DecodeShared<V>);
  static TANDEM_DEVICE void run(const DecodeArguments& args) { decode_kernel<V>(args); }
};
template <CombineVariant V>
struct CombineBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const CombineArguments& args) { combine_kernel<V>(args); }
};
template <PlanVariant V>
struct PlanBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const PlanArguments& args) { plan_kernel(args.step, args.plan); }
};
template <PrefixListVariant V>
struct PrefixListBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const PrefixListArguments& args) { prefix_list_kernel(args); }
};
template <ClearVariant V>
struct ClearBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const ClearArguments& args) { clear_kernel(args); }
};

}  // namespace tandem::decode
