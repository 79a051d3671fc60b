// The producer warpgroup of a tile of keys: Algorithm 3's producer (lines 5-13) and its dQ writers (lines
// 30-34).
#pragma once

#include "backward/keys_shared.h"
#include "backward/work.h"

namespace tandem::backward {

/// Calls `visit(head, block)` for each step of the loop: the blocks of queries of one head after another.
template <typename Visit>
TANDEM_DEVICE void for_each_step(const BackwardArguments& args, const KeyWork& work, const Visit& visit) {
  const int group = args.group.value();
  for (int head = work.kv_head * group; head < (work.kv_head + 1) * group; ++head) {
    for (int block = work.blocks.begin; block < work.blocks.end; ++block) visit(head, block);
  }
}

/// One thread. Tiles of the same head read the same queries at the same time, so L2 is to keep those.
template <BackwardVariant V, typename Shared>
struct KeysProducer {
  const BackwardArguments& args;
  Shared& shared;
  tile::PipelineState<1> keys_at{};
  tile::PipelineState<V.q_stages> q_at{};
  tile::PipelineState<V.stages> dout_at{};

  /// What a tile needs.
  TANDEM_DEVICE void produce_tile(const KeyWork& work) {
    load_keys(shared.k, shared.k_pipeline, args.k, work);  // lines 7, 8
    bool first = true;
    for_each_step(args, work, [&](int head, int block) {  // line 9
      const hw::BoxOrigin origin{0, block * V.block_m, head, work.batch};
      const std::int64_t statistics = statistics_at(args.extent, work.batch, head, origin.s);
      load_queries(shared.q, shared.q_pipeline, q_at, args.q, origin);  // lines 10-12
      start_statistics(shared.lse_log2, shared.q_pipeline, q_at, args.statistics.lse_log2 + statistics);
      q_at.advance();
      if (first) load_keys(shared.v, shared.v_pipeline, args.v, work);  // lines 7, 8: before they are needed
      first = false;
      load_queries(shared.dout, shared.dout_pipeline, dout_at, args.dout, origin);
      start_statistics(shared.delta, shared.dout_pipeline, dout_at, args.statistics.delta + statistics);
      dout_at.advance();
    });
    keys_at.advance();
  }

 private:
  template <typename Tiles>
  TANDEM_DEVICE void load_keys(Tiles& tiles, tile::Pipeline<1>& pipeline, const hw::TensorMap& map,
                               const KeyWork& work) const {
    tile::producer_acquire(pipeline, keys_at, Shared::key_tiles * Shared::KeyTile::bytes);
    for (int i = 0; i < Shared::key_tiles; ++i) {
      tile::load_tile(tiles[i], map, pipeline.full[0],
                      {0, work.first_key + i * tile::warpgroup_rows, work.kv_head, work.batch},
                      hw::CachePolicy::evict_first);
    }
  }
  /// Lines 10-12: a block of Q or dO, and beside it the statistics that come with it.
  template <int stages>
  TANDEM_DEVICE static void load_queries(auto& tiles, tile::Pipeline<stages>& pipeline,
                                         const tile::PipelineState<stages>& at, const hw::TensorMap& map,
                                         hw::BoxOrigin origin) {
    tile::producer_acquire(pipeline, at, Shared::QueryTile::bytes + StatisticsStage<V.block_m>::bytes);
    tile::load_tile(tiles[at.stage], map, pipeline.full[at.stage], origin, hw::CachePolicy::evict_last);
  }
  template <int stages>
  TANDEM_DEVICE static void start_statistics(auto& to, tile::Pipeline<stages>& pipeline,
                                             const tile::PipelineState<stages>& at, const float* from) {
    hw::copy_in(to[at.stage].value, from, to[at.stage].bytes, pipeline.full[at.stage]);
  }
};

/// Which part of the sums a consumer's part of dQ is: of 64 queries of a block, or of 64 columns.
template <BackwardVariant V>
TANDEM_DEVICE int part_of(const Extent& extent, int batch, int head, int block, int consumer) {
  constexpr int row_blocks_a_block = V.block_m / part_rows;
  static_assert(row_blocks_a_block * parts_of_rows(V.head_dim) == V.consumers);
  const int row_block = block * row_blocks_a_block + consumer % row_blocks_a_block;
  return part_number(batch * extent.q_heads + head, extent.padded_q_len / part_rows, row_block, V.head_dim,
                     consumer / row_blocks_a_block);
}

/// One thread for each consumer: lines 31-34 for its parts of dQ.
template <BackwardVariant V>
TANDEM_DEVICE void write_dq(const BackwardArguments& args, KeysShared<V>& shared, int consumer) {
  auto& pipeline = shared.dq.part_pipeline[consumer];
  const float* part = shared.dq.part[consumer].value;
  tile::PipelineState<1> at;
  for_each_key_work<V>(args, [&](const KeyWork& work) {
    for_each_step(args, work, [&](int head, int block) {  // line 31
      const int number = part_of<V>(args.extent, work.batch, head, block, consumer);
      pipeline.wait_filled(at);                                                   // line 32
      hw::reduce_add_box(args.dq_sums, {0, number * part_box_rows, 0, 0}, part);  // line 33
      hw::commit_stores();
      hw::wait_stores_read<0>();
      hw::barrier_arrive(pipeline.emptied[0]);
      at.advance();
    });
  });
}

}  // namespace tandem::backward
