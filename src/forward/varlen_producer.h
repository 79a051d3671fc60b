// The producers where lengths vary, one of queries and keys and one of values: whole warps, whose lanes look
// up the pages of a block side by side.
#pragma once

#include "forward/key_boxes.h"
#include "forward/producer.h"
#include "forward/shared_storage.h"
#include "forward/tail.h"
#include "forward/work.h"

namespace tandem::forward {

/// As Producer (producer.h). Where the tile's keys lie is read once a tile, since loads cannot leave a loop.
template <ForwardVariant V, bool narrow>
struct VarlenProducer {
  using QueryTile = typename ForwardShared<V>::QueryTile;
  using KeyTile = typename ForwardShared<V>::KeyTile;
  using ValueTile = typename ForwardShared<V>::ValueTile;

  const ForwardArguments& args;
  ForwardShared<V>& shared;
  bool leads;  ///< in the lane that starts all copies
  tile::PipelineState<1> q_at;
  tile::PipelineState<V.kv_stages> kv_at;  ///< of K, or of V

  TANDEM_DEVICE bool paged() const { return args.varlen.page_table != nullptr; }
  TANDEM_DEVICE hw::BoxOrigin queries(const TileQueries& of, const Work& work, int consumer) const {
    return box_of_rows(args, of, work.first_row + consumer * tile::warpgroup_rows);
  }

  /// A lane that were still here when what the leading one loads is given back would miss a phase.
  TANDEM_DEVICE static void wait_emptied(hw::Barrier& empty, std::uint32_t parity) {
    hw::barrier_wait(empty, parity ^ 1u);
    hw::sync_warp();
  }

  TANDEM_DEVICE void load_queries(const Work& work) {
    const TileQueries of = queries_of<V>(work.tile);
    for (int c = 0; c < V.consumers(); ++c) {
      wait_emptied(shared.q_pipeline[c].empty[0], q_at.parity);
      if (!leads) continue;
      const hw::Panels panels = args.q_panels<narrow>();
      hw::barrier_arrive_expecting(shared.q_pipeline[c].full[0], tile::box_bytes<QueryTile>(panels));
      tile::load_tile(shared.q[c], panels, shared.q_pipeline[c].full[0], queries(of, work, c),
                      hw::CachePolicy::evict_first);
    }
    q_at.advance();
  }

  template <typename Tile>
  TANDEM_DEVICE void load(Tile& to, const hw::Panels& panels, hw::Barrier& landed, const KeyPlace& place,
                          const BlockPages& pages) const {
    if (leads) hw::barrier_arrive_expecting(landed, tile::box_bytes<Tile>(panels));
    if (paged()) {
      pages.template load<V>(to, panels, landed, args.varlen, place.kv_head, leads);
    } else if (leads) {
      tile::load_tile(to, panels, landed, place.origin(pages.first_key), hw::CachePolicy::evict_last);
    }
  }

  /// Where the block at a position of the loop lies.
  TANDEM_DEVICE BlockPages pages_of(const KeyPlace& place, int k_len, int block) const {
    const int key = block * V.block_n;
    if (paged()) return BlockPages::of<V>(args.varlen, place.batch, key, k_len);
    return {key, 0, 0};
  }
  /// One block of K.
  TANDEM_DEVICE void load_keys(const Work& work, const KeyPlace& place, int k_len, int i) {
    const BlockPages pages = pages_of(place, k_len, key_block<V>(args, work.loop, i));
    auto& [stage, parity] = kv_at;
    wait_emptied(shared.k_pipeline.empty[stage], parity);
    load(shared.k[stage], args.k_panels<narrow>(), shared.k_pipeline.full[stage], place, pages);
    kv_at.advance();
  }
  /// One block of V. Where its tail is cleared before the stage is full it lands at a barrier of its own
  /// (tail.h).
  TANDEM_DEVICE void load_values(const Work& work, const KeyPlace& place, int k_len, int i) {
    const int block = key_block<V>(args, work.loop, i);
    const BlockPages pages = pages_of(place, k_len, block);
    auto& [stage, parity] = kv_at;
    wait_emptied(shared.v_pipeline.empty[stage], parity);
    const bool tail = has_tail<V>(block, k_len);
    load(shared.v[stage], args.v_panels<narrow>(),
         tail ? shared.tail.landed[stage] : shared.v_pipeline.full[stage], place, pages);
    kv_at.advance();
  }
};

/// How many blocks before the end of its loads a tile asks for the next one: those hide that the counter is
/// in L2.
inline constexpr int loads_ahead = 2;

/// Warp: lines 4-8 for every tile of the block, and line 9 for K.
template <ForwardVariant V, bool narrow>
TANDEM_DEVICE void produce_queries_and_keys(const ForwardArguments& args, ForwardShared<V>& shared) {
  VarlenProducer<V, narrow> producer{args, shared, hw::elect_one(), {}, {}};
  for_each_tile<V>(args, [&](const Work& work, int k_len) {
    const KeyPlace place = KeyPlace::of<V>(args, work.tile);
    const int ask_at = work.loop.count - loads_ahead;
    for (int i = 0; i == 0 || i < work.loop.count; ++i) {
      if (work.loop.count > 0) producer.load_keys(work, place, k_len, i);
      if (i == 0) producer.load_queries(work);
      if (i == ask_at || (i == 0 && ask_at < 0)) shared.queue.ask();
    }
  });
}

/// Another warp: line 9 for V. Boxes of small pages are so many that one warp would be late with both.
template <ForwardVariant V, bool narrow>
TANDEM_DEVICE void produce_values(const ForwardArguments& args, ForwardShared<V>& shared) {
  VarlenProducer<V, narrow> producer{args, shared, hw::elect_one(), {}, {}};
  for_each_tile<V>(args, [&](const Work& work, int k_len) {
    shared.queue.ask();
    const KeyPlace place = KeyPlace::of<V>(args, work.tile);
    for (int i = 0; i < work.loop.count; ++i) producer.load_values(work, place, k_len, i);
  });
}

/// What a warp brings.
enum class Brings { queries_and_keys, values };

template <ForwardVariant V, Brings what, bool narrow>
TANDEM_DEVICE void produce_part(const ForwardArguments& args, ForwardShared<V>& shared) {
  if constexpr (what == Brings::values) {
    produce_values<V, narrow>(args, shared);
  } else {
    produce_queries_and_keys<V, narrow>(args, shared);
  }
}

/// Two ways, as produce (producer.h).
template <ForwardVariant V, Brings what>
TANDEM_DEVICE void produce_varlen(const ForwardArguments& args, ForwardShared<V>& shared) {
  if constexpr (V.boxes_end_with_rows()) {
    if (args.narrow_rows) return produce_part<V, what, true>(args, shared);
  }
  produce_part<V, what, false>(args, shared);
}

}  // namespace tandem::forward
