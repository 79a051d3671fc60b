// The producer warpgroup (Algorithm 1, lines 2-10).
#pragma once

#include "forward/key_boxes.h"
#include "forward/shared_storage.h"
#include "forward/tail.h"
#include "forward/work.h"

namespace tandem::forward {

/// Feeds the rings. One thread does; TMA does the copying, so the thread only waits for empty slots. All
/// tiles of a head read its keys and values, so L2 is to keep those rather than queries and outputs.
template <ForwardVariant V>
struct Producer {
  using QueryTile = typename ForwardShared<V>::QueryTile;
  using KeyTile = typename ForwardShared<V>::KeyTile;
  using ValueTile = std::conditional_t<V.transposes(), KeyTile, typename ForwardShared<V>::ValueTile>;
  static_assert(QueryTile::rows % Packing::most_heads == 0);

  const ForwardArguments& args;
  ForwardShared<V>& shared;
  tile::RingPosition<1> q_at;
  tile::RingPosition<V.kv_stages> k_at, v_at;
  tile::RingPosition<V.row_stages()> rows_at;

  /// Of position i of the walk.
  TANDEM_DEVICE KeyBlock keys(const Work& work, int i) const {
    return {work.walk.block(i), args.group.divide(work.tile.head).quotient,
            sequence_of<V>(args, work.tile.batch)};
  }
  TANDEM_DEVICE hw::BoxOrigin values(const Work& work, int i) const {
    const hw::BoxOrigin at = keys(work, i).origin(V.block_n);
    if constexpr (V.values == ValueLayout::columns) return {V.words(at.s), 0, at.h, at.b};
    return at;
  }
  TANDEM_DEVICE hw::BoxOrigin queries(const Work& work, int consumer) const {
    return box_of_rows<V>(args, work.tile, work.first_row + consumer * tile::warpgroup_rows);
  }

  /// Lines 4 and 5.
  TANDEM_DEVICE void load_queries(const Work& work) {
    for (int c = 0; c < V.consumers(); ++c) {
      tile::acquire_slot(shared.q_ring[c], q_at, QueryTile::bytes);
      tile::load_tile(shared.q[c], args.q, shared.q_ring[c].full[0], queries(work, c),
                      hw::CachePolicy::evict_first);
    }
    q_at.advance();
  }

  /// Lines 7-9 for K.
  TANDEM_DEVICE void load_k(const Work& work, int i) {
    tile::acquire_slot(shared.k_ring, k_at, KeyTile::bytes);
    load_keys<V>(shared.k[k_at.slot], args.k, shared.k_ring.full[k_at.slot], args, keys(work, i));
    k_at.advance();
  }

  /// Lines 7-9 for V.
  TANDEM_DEVICE void load_v(const Work& work, int i) {
    if constexpr (V.transposes()) {
      load_8_bit_v(shared.rows.ring, rows_at, shared.rows.v, values(work, i));
    } else if constexpr (V.is_8_bit()) {
      load_8_bit_v(shared.v_ring, v_at, shared.v, values(work, i));
    } else {
      hw::Barrier& landed = v_lands_at(work, i);
      hw::barrier_wait(shared.v_ring.empty[v_at.slot], v_at.parity ^ 1u);
      hw::barrier_arrive_expecting(landed, KeyTile::bytes);
      load_keys<V>(shared.v[v_at.slot], args.v, landed, args, keys(work, i));
      v_at.advance();
    }
  }
  template <int stages>
  TANDEM_DEVICE void load_8_bit_v(tile::Ring<stages>& ring, tile::RingPosition<stages>& at,
                                  ValueTile (&v)[stages], hw::BoxOrigin origin) {
    tile::acquire_slot(ring, at, ValueTile::bytes);
    tile::load_tile(v[at.slot], args.v, ring.full[at.slot], origin, hw::CachePolicy::evict_last);
    at.advance();
  }

  /// Of a block whose tail is cleared before the slot is full, a barrier of its own (tail.h).
  TANDEM_DEVICE hw::Barrier& v_lands_at(const Work& work, int i) {
    if constexpr (V.lengths == Lengths::varlen) {
      if (has_tail<V>(work.walk.block(i), sequence_of<V>(args, work.tile.batch).k_len))
        return shared.tail.landed[v_at.slot];
    }
    return shared.v_ring.full[v_at.slot];
  }

  /// Brings what a tile needs first into L2, so that its loads find it there once their slots are free.
  TANDEM_DEVICE void prefetch(const Work& work) const {
    for (int c = 0; c < V.consumers(); ++c) tile::prefetch_tile<QueryTile>(args.q, queries(work, c));
    if (work.walk.count == 0) return;
    if (V.lengths == Lengths::varlen) return;  // its keys may be in many boxes
    tile::prefetch_tile<KeyTile>(args.k, keys(work, 0).origin(V.block_n));
    tile::prefetch_tile<ValueTile>(args.v, values(work, 0));
  }
};

/// Lines 4-10 for every tile of the block.
template <ForwardVariant V>
TANDEM_DEVICE void produce(const ForwardArguments& args, ForwardShared<V>& shared) {
  Producer<V> producer{args, shared, {}, {}, {}, {}};
  constexpr TileRows all_rows{0, V.block_m};
  int round = 0;
  Work work = find_work<V>(args, all_rows, round);
  while (work.exists()) {
    const Work next = find_work<V>(args, all_rows, ++round);
    // K's first slot is free before the queries' are: those are in use until the last block of the tile
    // before.
    if (work.walk.count > 0) producer.load_k(work, 0);
    producer.load_queries(work);
    if (next.exists()) producer.prefetch(next);
    for (int i = 0; i < work.walk.count; ++i) {  // line 6
      if (i > 0) producer.load_k(work, i);
      producer.load_v(work, i);
    }
    work = next;
  }
}

}  // namespace tandem::forward
