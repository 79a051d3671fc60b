// The producer warpgroup (Algorithm 1, lines 2-10).
#pragma once

#include "forward/key_boxes.h"
#include "forward/shared_storage.h"
#include "forward/work.h"

namespace tandem::forward {

/// Head dims up to here have the next tile brought into L2.
inline constexpr int widest_prefetched = 128;

/// What of the next tile, which visits so many blocks of keys, is worth to be brought into L2. Of few it is
/// TMA that a tile waits for, which then has everything to do twice; boxes of narrow rows are more work for
/// it (docs/performance/forward.md, Rows that are no lines).
struct Prefetch {
  bool queries, keys;

  template <ForwardVariant V, bool narrow>
  TANDEM_DEVICE static Prefetch of(int blocks) {
    return {!narrow || blocks > 3, !narrow && blocks > (V.is_8_bit() ? 0 : 2)};
  }
};

/// Feeds the pipelines. One thread does; TMA does the copying, so the thread only waits for empty stages. All
/// tiles of a head read its keys and values, so L2 is to keep those rather than queries and outputs. narrow:
/// boxes end with rows, which have fewer columns than tiles.
template <ForwardVariant V, bool narrow>
struct Producer {
  using QueryTile = typename ForwardShared<V>::QueryTile;
  using KeyTile = typename ForwardShared<V>::KeyTile;
  using ValueTile = std::conditional_t<V.transposes(), typename ForwardShared<V>::ValueRowsTile,
                                       typename ForwardShared<V>::ValueTile>;
  static_assert(QueryTile::rows % Packing::most_heads == 0);

  const ForwardArguments& args;
  ForwardShared<V>& shared;
  tile::PipelineState<1> q_at;
  tile::PipelineState<V.kv_stages> k_at, v_at;
  tile::PipelineState<V.row_stages()> rows_at;

  /// Of position i of the loop.
  TANDEM_DEVICE hw::BoxOrigin keys(const Work& work, int i) const {
    return KeyPlace::of<V>(args, work.tile).origin(key_block<V>(args, work.loop, i) * V.block_n);
  }
  TANDEM_DEVICE hw::BoxOrigin values(const Work& work, int i) const {
    const hw::BoxOrigin at = keys(work, i);
    if constexpr (V.values == ValueLayout::columns) return {V.words(at.s), 0, at.h, at.b};
    return at;
  }
  TANDEM_DEVICE hw::BoxOrigin queries(const Work& work, int consumer) const {
    return box_of_rows(args, queries_of<V>(work.tile), work.first_row + consumer * tile::warpgroup_rows);
  }

  /// Lines 4 and 5.
  TANDEM_DEVICE void load_queries(const Work& work) {
    for (int c = 0; c < V.query_tiles(); ++c) {
      tile::producer_acquire(shared.q_pipeline[c], q_at, tile::box_bytes<QueryTile>(args.q_panels<narrow>()));
      tile::load_tile(shared.q[c], args.q_panels<narrow>(), shared.q_pipeline[c].full[0], queries(work, c),
                      hw::CachePolicy::evict_first);
    }
    q_at.advance();
  }

  /// Lines 7-9 for K.
  TANDEM_DEVICE void load_k(const Work& work, int i) {
    if constexpr (V.is_8_bit()) bring_scales(work, key_block<V>(args, work.loop, i) * V.block_n);
    load_parts<KeyTile::columns, 0>(args.k_panels<narrow>(), shared.k_pipeline, k_at, shared.k,
                                    keys(work, i));
  }

  /// The scales of the block of keys from `key` on, which are under way while its stage is not free yet.
  TANDEM_DEVICE void bring_scales(const Work& work, int key) {
    const int head = args.group.divide(work.tile.head).quotient, batch = work.tile.batch;
    const BlockScales scales{scale_of(args.k_scale, scales_of_head(args.k_scale, batch, head), key),
                             scale_of(args.v_scale, scales_of_head(args.v_scale, batch, head), key)};
    hw::barrier_wait(shared.k_pipeline.empty[k_at.stage], k_at.parity ^ 1u);
    shared.scales.of_block[k_at.stage] = scales;
  }

  /// Lines 7-9 for V.
  TANDEM_DEVICE void load_v(const Work& work, int i) {
    if constexpr (V.transposes()) {
      load_8_bit_v(shared.rows.pipeline, rows_at, shared.rows.v, values(work, i));
    } else if constexpr (V.is_8_bit()) {
      load_8_bit_v(shared.v_pipeline, v_at, shared.v, values(work, i));
    } else {
      load_parts<0, ValueTile::rows>(args.v_panels<narrow>(), shared.v_pipeline, v_at, shared.v,
                                     values(work, i));
    }
  }
  /// All parts of a block, which lie so many columns, or rows, apart.
  template <int columns, int rows, typename Tile>
  TANDEM_DEVICE void load_parts(const hw::Panels& panels, tile::Pipeline<V.kv_stages>& pipeline,
                                tile::PipelineState<V.kv_stages>& at, Tile (&tiles)[V.kv_stages],
                                hw::BoxOrigin origin) {
    TANDEM_UNROLL
    for (int part = 0; part < V.block_parts(); ++part) {
      tile::producer_acquire(pipeline, at, tile::box_bytes<Tile>(panels));
      tile::load_tile(tiles[at.stage], panels, pipeline.full[at.stage], origin, hw::CachePolicy::evict_last);
      origin.d += columns, origin.s += rows;
      at.advance();
    }
  }
  template <int stages>
  TANDEM_DEVICE void load_8_bit_v(tile::Pipeline<stages>& pipeline, tile::PipelineState<stages>& at,
                                  ValueTile (&v)[stages], hw::BoxOrigin origin) {
    constexpr std::uint32_t bytes_of_ones = V.rows_of_ones() * tile::row_bytes;
    tile::producer_acquire(pipeline, at, V.value_terms * (ValueTile::bytes - bytes_of_ones));
    tile::load_tile(v[at.stage], hw::Panels::whole_ones(args.v), pipeline.full[at.stage], origin,
                    hw::CachePolicy::evict_last);
    if constexpr (V.value_terms == 2) {
      origin.s += args.value_dim;
      tile::load_tile(shared.second.v[at.stage], hw::Panels::whole_ones(args.v), pipeline.full[at.stage],
                      origin, hw::CachePolicy::evict_last);
    }
    at.advance();
  }

  /// Brings a tile's queries into L2, so that their load finds them there once the tile before has left
  /// theirs. Of keys and values only what several tiles want at the same time, and nothing of wide heads:
  /// what is brought early pushes something else out of L2 (docs/performance/forward.md, What L2 holds).
  TANDEM_DEVICE void prefetch(const Work& work) const {
    if constexpr (V.head_dim <= widest_prefetched) {
      const Prefetch wants = Prefetch::of<V, narrow>(work.loop.count);
      if (wants.queries)
        for (int c = 0; c < V.query_tiles(); ++c)
          tile::prefetch_tile<QueryTile>(args.q_panels<narrow>(), queries(work, c));
      if (!wants.keys || !tiles_run_alike()) return;
      tile::prefetch_tile<KeyTile>(args.k_panels<narrow>(), keys(work, 0));
      tile::prefetch_tile<ValueTile>(args.v_panels<narrow>(), values(work, 0));
    }
  }

 private:
  /// Several tiles of a head, all of the same length.
  TANDEM_DEVICE bool tiles_run_alike() const {
    return V.mask == MaskKind::prefix && args.mask.right == core::BasicMask<std::int32_t>::unlimited &&
           args.q_len > V.block_m;
  }
};

/// Lines 4-10 for every tile of the block.
template <ForwardVariant V, bool narrow>
TANDEM_DEVICE void produce_tiles(const ForwardArguments& args, ForwardShared<V>& shared) {
  Producer<V, narrow> producer{args, shared, {}, {}, {}, {}};
  constexpr TileRows all_rows{0, V.block_m};
  int round = 0;
  Work work = find_first_work<V>(args, all_rows, round);
  while (work.exists()) {
    Work next;
    // K's first stage is free before the queries' are: those are in use until the last block of the tile
    // before.
    if (work.loop.count > 0) producer.load_k(work, 0);
    producer.load_queries(work);
    for (int i = 0; i == 0 || i < work.loop.count; ++i) {  // line 6
      if (i > 0) producer.load_k(work, i);
      // Late, where the ring is full; ahead of the tile's first loads they would wait for it.
      if (i >= work.loop.count - 1) {
        next = find_work<V>(args, all_rows, ++round);
        if (work.loop.count > 0 && next.exists()) producer.prefetch(next);
      }
      if (work.loop.count > 0) producer.load_v(work, i);
    }
    work = next;
  }
}

/// Two ways: rows that fill their tiles have none of the other's instructions, which short calls would wait
/// for.
template <ForwardVariant V>
TANDEM_DEVICE void produce(const ForwardArguments& args, ForwardShared<V>& shared) {
  if constexpr (V.boxes_end_with_rows()) {
    if (args.narrow_rows) return produce_tiles<V, true>(args, shared);
  }
  produce_tiles<V, false>(args, shared);
}

}  // namespace tandem::forward
