// What the consumer warpgroup does around the products, whatever the algorithm: queries, the sequence's new
// end, slots.
#pragma once

#include <cstdint>

#include "decode/arguments.h"
#include "decode/rotary.h"
#include "decode/shared_storage.h"
#include "decode/work.h"
#include "hw/hw.h"

namespace tandem::decode {

/// Named barriers of a decode kernel; 0 is the block barrier.
enum class NamedBarrier : std::uint32_t { consumers = 1 };

TANDEM_DEVICE void sync_consumers() {
  hw::sync_named(static_cast<std::uint32_t>(NamedBarrier::consumers), DecodeVariant::consumer_threads);
}

/// The consumer's warp. Unlike warp_index it may be asked for where lanes differ.
TANDEM_DEVICE int own_warp() { return static_cast<int>(hw::thread_index()) / hw::warp_size; }

/// Keys that a query row sees.
struct RowLimits {
  int begin, end;
};

template <DecodeVariant V>
struct Consumer {
  static constexpr int row_chunks = V.head_dim / tile::chunk_columns;

  const DecodeArguments& args;
  DecodeShared<V>& shared;
  tile::RingPosition<V.stages> k_at, v_at;

  /// What a thread has of a row tile's queries, as they lie in memory; zeros for rows that don't exist.
  static constexpr int query_chunks =
      (V.columns * row_chunks + DecodeVariant::consumer_threads - 1) / DecodeVariant::consumer_threads;
  struct Queries {
    tile::Chunk chunk[query_chunks];
  };
  /// Whether they are fetched while the item before is at work: where registers allow.
  static constexpr bool fetches_ahead = query_chunks <= 2;

  /// Starts the loads of the item's queries.
  TANDEM_DEVICE void fetch_queries(const Item& item, Queries& queries) const {
    TANDEM_UNROLL
    for (int i = 0; i < query_chunks; ++i)
      queries.chunk[i] = fetch_chunk(QueryPlace(*this, item, own_chunk(i)));
  }
  /// The queries that were fetched for the item, rotated, to shared memory.
  TANDEM_DEVICE void place_queries(const Item& item, const Queries& queries) {
    sync_consumers();  // nobody multiplies with the queries before
    TANDEM_UNROLL
    for (int i = 0; i < query_chunks; ++i)
      place_chunk(QueryPlace(*this, item, own_chunk(i)), queries.chunk[i]);
    publish_queries();
  }
  /// Both, for an item whose queries have not been fetched.
  TANDEM_DEVICE void load_queries(const Item& item) {
    sync_consumers();
    for (int chunk = own_chunk(0); chunk < V.columns * row_chunks; chunk += DecodeVariant::consumer_threads) {
      const QueryPlace at(*this, item, chunk);
      place_chunk(at, fetch_chunk(at));
    }
    publish_queries();
  }

  /// Waits for the block of keys at `key`. Where it reaches past the cache's keys, waits for the values too
  /// and puts right what TMA has brought of those rows.
  TANDEM_DEVICE void wait_keys(const Item& item, int key) {
    tile::wait_full(shared.k_ring, k_at);
    if (key + V.block_n <= item.length) return;
    tile::wait_full(shared.v_ring, v_at);
    hw::sync_warp();
    replace_rows(item, key);
    hw::fence_async_proxy();
    sync_consumers();
  }
  TANDEM_DEVICE void wait_values() { tile::wait_full(shared.v_ring, v_at); }

  TANDEM_DEVICE void release_keys() {
    tile::release_slot(shared.k_ring, k_at);
    k_at.advance();
  }
  TANDEM_DEVICE void release_values() {
    tile::release_slot(shared.v_ring, v_at);
    v_at.advance();
  }

  /// Keys of the item that a row of its tile sees.
  TANDEM_DEVICE RowLimits limits_of(const Item& item, int tile_row) const {
    const int token = args.group.divide(item.row_tile * V.columns + tile_row).quotient;
    const auto seen = args.units.mask.visible_keys(token, args.units.q_len, item.keys);
    return {seen.begin > item.begin ? seen.begin : item.begin, seen.end < item.end ? seen.end : item.end};
  }
  /// Whether there is a key in the block at `key` that some row of the tile does not see.
  TANDEM_DEVICE bool needs_mask(const Item& item, int key) const {
    const RowLimits first = limits_of(item, 0), last = limits_of(item, V.columns - 1);
    return key < last.begin || key + V.block_n > first.end;
  }
  /// Brings scores under the cap, where there is one.
  template <int count>
  TANDEM_DEVICE void cap(float (&scores)[count]) const {
    if (args.score_to_cap == 0.f) return;
    TANDEM_UNROLL
    for (float& score : scores) score = hw::tanh(score * args.score_to_cap);
  }

 private:
  /// Where a chunk of a row tile's queries lies.
  struct QueryPlace {
    int tile_row, column, position;
    const std::uint16_t* row;
    bool exists;

    TANDEM_DEVICE QueryPlace(const Consumer& consumer, const Item& item, int chunk)
        : tile_row(chunk / row_chunks), column(chunk % row_chunks * tile::chunk_columns) {
      const DecodeArguments& args = consumer.args;
      const auto [token, head] = args.group.divide(item.row_tile * V.columns + tile_row);
      position = item.keys - args.units.q_len + token;
      row = static_cast<const std::uint16_t*>(args.q.data) +
            args.q.at(item.sequence, token, item.head * args.group.value() + head);
      exists = tile_row < rows_of_tile(args, item, V.columns);
    }
  };
  TANDEM_DEVICE static int own_chunk(int i) {
    return static_cast<int>(hw::thread_index()) + i * DecodeVariant::consumer_threads;
  }
  TANDEM_DEVICE static tile::Chunk fetch_chunk(const QueryPlace& at) {
    tile::Chunk chunk{};
    if (at.exists) chunk = load_chunk(at.row + at.column);
    return chunk;
  }
  TANDEM_DEVICE void place_chunk(const QueryPlace& at, const tile::Chunk& fetched) {
    tile::Chunk chunk = fetched;
    if (at.exists) chunk = rotated_chunk<V.operand>(chunk, at.row, at.column, args.rotary, at.position);
    if (at.tile_row < V.columns) shared.q.chunk(at.tile_row, at.column) = chunk;
  }
  TANDEM_DEVICE static void publish_queries() {
    hw::fence_async_proxy();
    sync_consumers();
  }

  /// Rows of the block from the cache's end on: those of new tokens come from k_new and v_new (and go to the
  /// cache); beyond them values become 0, since a probability of 0 times what lies there may be NaN. Scores
  /// of keys beyond are masked.
  TANDEM_DEVICE void replace_rows(const Item& item, int key) {
    const int first = key > item.length ? key : item.length;
    const int chunks = (key + V.block_n - first) * row_chunks;
    for (int i = static_cast<int>(hw::thread_index()); i < chunks; i += DecodeVariant::consumer_threads) {
      const int own_key = first + i / row_chunks, column = i % row_chunks * tile::chunk_columns;
      tile::Chunk& v = chunk_of(shared.v[v_at.slot], own_key - key, column);
      if (own_key < item.keys) {
        append(item, own_key, column, chunk_of(shared.k[k_at.slot], own_key - key, column), v);
      } else {
        v = tile::Chunk{};
      }
    }
  }

  TANDEM_DEVICE static tile::Chunk& chunk_of(typename DecodeShared<V>::KeyBlock& block, int row, int column) {
    constexpr int tile_keys = DecodeShared<V>::tile_keys;
    return block.tile[row / tile_keys].chunk(row % tile_keys, column);
  }

  /// A piece of a new token's key and value. One row tile of those that walk the key stores it in the cache.
  TANDEM_DEVICE void append(const Item& item, int key, int column, tile::Chunk& k, tile::Chunk& v) {
    const int token = key - item.length;
    const auto* k_new = static_cast<const std::uint16_t*>(args.k_new.data);
    const auto* v_new = static_cast<const std::uint16_t*>(args.v_new.data);
    // By way of registers: the simulator does not see what a call returns into shared memory.
    const tile::Chunk new_k = load_rotated<V.operand>(k_new + args.k_new.at(item.sequence, token, item.head),
                                                      column, args.rotary, key);
    const tile::Chunk new_v = load_chunk(v_new + args.v_new.at(item.sequence, token, item.head) + column);
    k = new_k, v = new_v;
    if (item.row_tile != 0 || key >= item.end) return;
    const int page = page_of(item, key);
    if (page < 0 || page >= args.pages.pages) return;
    const auto row = static_cast<int>(static_cast<std::uint32_t>(key) & ((1u << args.pages.page_shift) - 1));
    auto* k_cache = static_cast<std::uint16_t*>(args.k_cache.data);
    auto* v_cache = static_cast<std::uint16_t*>(args.v_cache.data);
    hw::store_global(k_cache + args.k_cache.at(page, row, item.head) + column, new_k.words);
    hw::store_global(v_cache + args.v_cache.at(page, row, item.head) + column, new_v.words);
  }

  TANDEM_DEVICE int page_of(const Item& item, int key) const {
    const PageView& pages = args.pages;
    const int entry =
        pages.batch_index != nullptr ? hw::load_global(pages.batch_index + item.sequence) : item.sequence;
    if (pages.table == nullptr) return entry;
    return hw::load_global(pages.table + entry * pages.table_stride + (key >> pages.page_shift));
  }
};

}  // namespace tandem::decode
