// The decode kernel, and the kernel that makes a plan for it.
#pragma once

#include "decode/partials.h"
#include "decode/plain.h"
#include "decode/producer.h"
#include "decode/register_p.h"
#include "decode/shared_p.h"
#include "decode/table.h"

namespace tandem::decode {

/// Walks the item's keys and leaves the result complete, whichever the algorithm.
template <DecodeVariant V>
TANDEM_DEVICE void attend_and_finish(Consumer<V>& consumer, const WalkerOf<V>& walker, const Item& item) {
  if constexpr (V.algorithm == Algorithm::plain) {
    PlainResult<V> result;
    attend_plain(consumer, item, result);
    result.complete();
    finish_item(consumer, walker, item, result);
  } else if constexpr (V.algorithm == Algorithm::shared_p) {
    TransposedResult<V> result;
    attend_shared_p(consumer, item, result);
    complete_shared_p(consumer, result);
    finish_item(consumer, walker, item, result);
  } else {
    ColumnSoftmax<V.columns> softmax;
    WarpOutput<V> output;
    attend_register_p(consumer, item, softmax, output);
    TransposedResult<V> result;
    combine_warps(consumer, softmax, output, result);
    finish_item(consumer, walker, item, result);
  }
}

template <DecodeVariant V>
TANDEM_DEVICE void consume(const DecodeArguments& args, DecodeShared<V>& shared, WalkerOf<V>& walker) {
  Consumer<V> consumer{args, shared, {}, {}};
  if constexpr (consumer.fetches_ahead) {
    typename Consumer<V>::Queries queries{};
    Item item = walker.next(), next{};
    if (item.exists()) consumer.fetch_queries(item, queries);
    for (; item.exists(); item = next) {
      consumer.place_queries(item, queries);
      next = walker.next();
      if (next.exists()) consumer.fetch_queries(next, queries);
      attend_and_finish(consumer, walker, item);
    }
  } else {
    for (Item item = walker.next(); item.exists(); item = walker.next()) {
      consumer.load_queries(item);
      attend_and_finish(consumer, walker, item);
    }
  }
}

/// The body of the kernel; the trampoline launches V.threads threads a block.
template <DecodeVariant V>
TANDEM_DEVICE void decode_kernel(const DecodeArguments& args) {
  auto& shared = hw::shared_memory<DecodeShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes);
  if (hw::thread_index() == 0) {
    shared.k_ring.init(warps);
    shared.v_ring.init(warps);
    hw::fence_barrier_init();
  }
  const bool producer = hw::warp_index() == warps;
  if (producer && hw::elect_one()) {
    hw::prefetch_map(args.k);
    hw::prefetch_map(args.v);
  }
  hw::sync_block();
  // Every block is resident from the start, so that the next grid takes nobody's place.
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  WalkerOf<V> walker(args, static_cast<int>(hw::block_index()));
  if (producer) {
    hw::set_role("producer");
    produce<V>(args, shared, walker);
  } else {
    hw::set_role("consumer");
    consume<V>(args, shared, walker);
  }
}

/// Writes what every block of the step's grid would find: plan_words words. One block of
/// PlanVariant::threads() threads, a warp for each block of the grid in turn.
TANDEM_DEVICE void plan_kernel(const DecodeArguments& args, std::int32_t* plan) {
  for (int block = static_cast<int>(hw::warp_index()); block < args.blocks;
       block += PlanVariant::threads() / hw::warp_size) {
    Walker<true> walker(args, block);
    const WalkStart start = walker.start();
    auto* words = reinterpret_cast<std::uint32_t*>(plan);
    if (hw::lane_index() != 0) continue;
    if (block == 0) {
      hw::store_global(words, static_cast<std::uint32_t>(walker.total()));
      hw::store_global(words + 1, static_cast<std::uint32_t>(walker.kind()));
    }
    hw::store_global(words + plan_words(block), static_cast<std::uint32_t>(start.sequence));
    hw::store_global(words + plan_words(block) + 1, static_cast<std::uint32_t>(start.position));
  }
}

/// Both as the launcher finds them.
template <DecodeVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(DecodeShared<V>);
  static TANDEM_DEVICE void run(const DecodeArguments& args) { decode_kernel<V>(args); }
};
template <PlanVariant V>
struct PlanBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const PlanArguments& args) { plan_kernel(args.step, args.plan); }
};

}  // namespace tandem::decode
