// The producer of a tile of keys: Algorithm 3's lines 5-13.
#pragma once

#include "backward/keys_shared.h"
#include "backward/work.h"

namespace tandem::backward {

/// Calls `visit(step)` for each step of the loop, as consumers take them (for_each_visit).
template <typename Visit>
TANDEM_DEVICE void for_each_step(const BackwardArguments& args, const KeyWork& work, const Visit& visit) {
  const int end_step = work.end_step;  // of who gives `work` back in the last step
  for (int step = work.first_step; step < end_step; ++step) {
    const auto [blocks, head] = args.group.divide(step - work.first_step);
    visit(Step{step, work.kv_head * args.group.value() + head, work.blocks.end - 1 - blocks,
               step + 1 == end_step});
  }
}

/// Of what the producer loads, ahead of the wait for the grids before.
TANDEM_DEVICE void prefetch_maps(const BackwardArguments& args) {
  if (hw::thread_index() != 0) return;
  hw::prefetch_map(args.k);
  hw::prefetch_map(args.q);
  hw::prefetch_map(args.v);
  hw::prefetch_map(args.dout);
}

/// One thread. Tiles of the same head read the same queries at the same time, so L2 is to keep those.
template <BackwardVariant V, typename Shared>
struct KeysProducer {
  const BackwardArguments& args;
  Shared& shared;
  tile::PipelineState<1> keys_at{};
  tile::PipelineState<V.q_stages> q_at{};
  tile::PipelineState<V.stages> dout_at{};

  /// What a tile needs. `tell()` is called once its first loads are on their way. Where a block takes one
  /// tile after another queries come first, for the tile before gives the places of keys back last.
  template <typename Tell>
  TANDEM_DEVICE void produce_tile(const KeyWork& work, const Tell& tell) {
    constexpr bool keys_first = !V.adds_dq();
    if constexpr (keys_first) load_keys(shared.k, shared.k_pipeline, args.k, work);  // lines 7, 8
    bool first = true;
    for_each_step(args, work, [&](const Step& step) {  // line 9
      const int query = step.block * V.block_m;
      const auto origin = query_box<V>(work, step.head, query);
      const std::int64_t statistics = statistics_at<V>(args.extent, work, step.head, query);
      load_queries(shared.q, shared.q_pipeline, q_at, args.q, origin);  // lines 10-12
      start_statistics(shared.lse_log2, shared.q_pipeline, q_at, args.statistics.lse_log2 + statistics);
      q_at.advance();
      if (first && keys_first) load_keys(shared.v, shared.v_pipeline, args.v, work);  // lines 7, 8
      load_queries(shared.dout, shared.dout_pipeline, dout_at, args.dout, origin);
      start_statistics(shared.delta, shared.dout_pipeline, dout_at, args.statistics.delta + statistics);
      dout_at.advance();
      if (first && !keys_first) {  // lines 7, 8
        load_keys(shared.k, shared.k_pipeline, args.k, work);
        load_keys(shared.v, shared.v_pipeline, args.v, work);
      }
      if (first) tell();
      first = false;
    });
    keys_at.advance();
  }

 private:
  template <typename Tiles>
  TANDEM_DEVICE void load_keys(Tiles& tiles, tile::Pipeline<1>& pipeline, const hw::TensorMap& map,
                               const KeyWork& work) const {
    tile::producer_acquire(pipeline, keys_at, Shared::key_tiles * Shared::KeyTile::bytes);
    const int head = args.splits.count.divide(work.kv_head).quotient;
    for (int i = 0; i < Shared::key_tiles; ++i) {
      tile::load_tile(tiles[i], hw::Panels::whole_ones(map), pipeline.full[0],
                      key_box<V>(work, head, work.first_key + i * tile::warpgroup_rows),
                      hw::CachePolicy::evict_first);
    }
  }
  /// Lines 10-12: a block of Q or dO, and beside it the statistics that come with it.
  template <int stages>
  TANDEM_DEVICE static void load_queries(auto& tiles, tile::Pipeline<stages>& pipeline,
                                         const tile::PipelineState<stages>& at, const hw::TensorMap& map,
                                         const auto& origin) {
    tile::producer_acquire(pipeline, at, Shared::QueryTile::bytes + StatisticsStage<V.block_m>::bytes);
    tile::load_tile(tiles[at.stage], hw::Panels::whole_ones(map), pipeline.full[at.stage], origin,
                    hw::CachePolicy::evict_last);
  }
  template <int stages>
  TANDEM_DEVICE static void start_statistics(auto& to, tile::Pipeline<stages>& pipeline,
                                             const tile::PipelineState<stages>& at, const float* from) {
    hw::copy_in(to[at.stage].value, from, to[at.stage].bytes, pipeline.full[at.stage]);
  }
};

}  // namespace tandem::backward
