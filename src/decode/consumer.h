// What the consumer warpgroup does around the products, whatever the algorithm: queries, the sequence's new
// end, slots.
#pragma once

#include <cstdint>

#include "decode/arguments.h"
#include "decode/pages.h"
#include "decode/shared_storage.h"
#include "decode/work.h"
#include "hw/hw.h"
#include "tile/rotary.h"
#include "tile/softmax.h"

namespace tandem::decode {

/// Named barriers of a decode kernel; 0 is the block barrier. Of all consumers, and of each of two
/// warpgroups.
enum class NamedBarrier : std::uint32_t { consumers = 1, first_warpgroup = 2 };

template <DecodeVariant V>
TANDEM_DEVICE void sync_consumers() {
  hw::sync_named(static_cast<std::uint32_t>(NamedBarrier::consumers), V.consumer_threads());
}

/// The same, and whether the predicate holds for one of them.
template <DecodeVariant V>
TANDEM_DEVICE bool any_consumer(bool predicate) {
  return hw::sync_named_any(static_cast<std::uint32_t>(NamedBarrier::consumers), V.consumer_threads(),
                            predicate);
}

/// Of two warpgroups, the thread's.
template <DecodeVariant V>
TANDEM_DEVICE int own_warpgroup() {
  return V.paired() ? static_cast<int>(hw::warp_index()) / warps : 0;
}

/// The consumer's warp. Unlike warp_index it may be asked for where lanes differ.
TANDEM_DEVICE int own_warp() { return static_cast<int>(hw::thread_index()) / hw::warp_size; }

/// What becomes of a row when all its keys have been visited.
struct FinishedRow {
  float lse;     ///< natural log of the sum of exponentials
  float factor;  ///< of the output, which it normalises
};

/// From the sum of probabilities 2^(score - reference), and the head's sink as an exponent of 2 (-inf: none):
/// one more key, without a value. Without a sink the factor is the sum's reciprocal, to the bit.
TANDEM_DEVICE FinishedRow finish_row(float reference, float sum, float sink) {
  const float top = hw::max(reference, sink);
  const float keys = hw::exp2(reference - top), total = hw::fma(sum, keys, hw::exp2(sink - top));
  if (total == 0.f) return {tile::minus_infinity, 0.f};
  return {tile::ln_2 * (top + hw::log2(total)), keys * hw::reciprocal(total)};
}

template <DecodeVariant V>
struct Consumer;

// Of an 8-bit cache (eight_bit.h).
template <DecodeVariant V>
TANDEM_DEVICE void quantise_rows(Consumer<V>& consumer, const WorkTile& work, int key);
template <DecodeVariant V>
TANDEM_DEVICE void place_permuted(Consumer<V>& consumer, int row, int column, const tile::Chunk& chunk);

/// Of a number, up to `most`.
constexpr int largest_divisor(int number, int most) {
  while (number % most != 0) --most;
  return most;
}

/// Keys that a query row sees.
struct RowLimits {
  int begin, end;
};

template <DecodeVariant V>
struct Consumer {
  static constexpr int row_chunks = V.head_dim / tile::chunk_columns;

  const DecodeArguments& args;
  DecodeShared<V>& shared;
  tile::PipelineState<V.stages> k_at, v_at;  ///< paired: both are where k_at is
  int first_visitor = 0;  ///< where blocks of keys are split: the warpgroup that the next tile's first is of

  /// What a thread has of a row tile's queries, as they lie in memory; zeros for rows that don't exist.
  static constexpr int query_chunks =
      (V.query_rows * row_chunks + V.consumer_threads() - 1) / V.consumer_threads();
  struct Queries {
    tile::Chunk chunk[query_chunks];
  };
  /// Whether they are fetched while the work before is at work: where registers allow.
  static constexpr int most_ahead = V.paired() && V.head_dim == 64         ? 4
                                    : V.resident == 3 && V.head_dim == 128 ? 1
                                                                           : 2;
  static constexpr bool fetches_ahead = query_chunks <= most_ahead &&
                                        !((V.eight_bit() || V.lists_queries()) && V.resident > 1) &&
                                        !V.narrows_tiles();

  /// Of a row of queries or keys.
  TANDEM_DEVICE int key_columns() const {
    if constexpr (V.two_part_keys) return V.head_dim;
    return V.values_in_keys() ? args.head_dim : args.value_dim;
  }

  /// Starts the loads of the work tile's queries.
  TANDEM_DEVICE void fetch_queries(const WorkTile& work, Queries& queries) const {
    const int first = static_cast<int>(hw::thread_index_anew());
    TANDEM_UNROLL
    for (int i = 0; i < query_chunks; ++i) queries.chunk[i] = fetch_chunk(query_place(work, first, i));
  }
  /// The queries that were fetched for the work, rotated, to shared memory.
  TANDEM_DEVICE void place_queries(const WorkTile& work, const Queries& queries) {
    sync_consumers<V>();  // nobody multiplies with the queries before
    const int first = static_cast<int>(hw::thread_index_anew());
    TANDEM_UNROLL
    for (int i = 0; i < query_chunks; ++i) place_chunk(query_place(work, first, i), queries.chunk[i]);
    publish_queries();
  }
  /// Both, for a work whose queries have not been fetched.
  TANDEM_DEVICE void load_queries(const WorkTile& work) {
    constexpr int most = V.eight_bit()        ? 1
                         : V.values_in_keys() ? 9
                                              : 4;  // on their way together: what registers allow
    constexpr int batch = largest_divisor(query_chunks, most);
    sync_consumers<V>();
    for (int first = static_cast<int>(hw::thread_index_anew()); first < V.query_rows * row_chunks;
         first += batch * V.consumer_threads()) {
      tile::Chunk fetched[batch];
      TANDEM_UNROLL
      for (int i = 0; i < batch; ++i) fetched[i] = fetch_chunk(query_place(work, first, i));
      TANDEM_UNROLL
      for (int i = 0; i < batch; ++i) place_chunk(query_place(work, first, i), fetched[i]);
    }
    publish_queries();
  }

  /// Waits for the block of keys at `key`. Where it reaches past the cache's keys, waits for the values too
  /// and puts right what TMA has brought of those rows.
  TANDEM_DEVICE void wait_keys(const WorkTile& work, int key) {
    tile::consumer_wait(shared.k_pipeline, k_at);
    if (past_brought_rows(key) <= work.length) return;
    wait_values();
    hw::sync_warp();
    if constexpr (V.eight_bit()) {
      quantise_rows(*this, work, key);
    } else {
      // Option 1 has no barrier between products and the stage's release, which one lane makes for its warp.
      if constexpr (V.algorithm == Algorithm::register_p) sync_visitors();
      replace_rows(work, key);
    }
    hw::fence_async_proxy();
    sync_visitors();
  }
  /// Values that lie in the keys have come with them, and keep them there until they are done with.
  TANDEM_DEVICE void wait_values() {
    if constexpr (!V.values_in_keys()) tile::consumer_wait(shared.v_pipeline, V.paired() ? k_at : v_at);
  }
  TANDEM_DEVICE void release_keys() {
    if constexpr (V.values_in_keys()) return;
    if constexpr (V.paired()) return tile::consumer_release(shared.k_pipeline, k_at);
    release(shared.k_pipeline, k_at);
  }
  TANDEM_DEVICE void release_values() {
    if constexpr (V.values_in_keys()) {
      release(shared.k_pipeline, k_at);
    } else {
      release(shared.v_pipeline, V.paired() ? k_at : v_at);
    }
  }
  TANDEM_DEVICE auto& values() {
    return shared.values(V.values_in_keys() || V.paired() ? k_at.stage : v_at.stage);
  }

  /// Queries of the work's sequence.
  TANDEM_DEVICE int queries_of(const WorkTile& work) const {
    return V.lists_queries() ? work.listed.queries : args.units.q_len;
  }
  /// Keys of the work that a row of its tile sees.
  TANDEM_DEVICE RowLimits limits_of(const WorkTile& work, int tile_row) const {
    if constexpr (V.shares_prefixes()) {
      if (work.listed.first_key == core::shared_prefix) return {work.begin, work.end};
    }
    const int token = args.group.divide(work.row_tile * V.query_rows + tile_row).quotient;
    const auto seen = args.units.mask.visible_keys(token, queries_of(work), work.keys);
    return {seen.begin > work.begin ? seen.begin : work.begin, seen.end < work.end ? seen.end : work.end};
  }
  /// Whether there is a key in the block at `key` that some row of the tile does not see.
  TANDEM_DEVICE bool needs_mask(const WorkTile& work, int key) const {
    const RowLimits first = limits_of(work, 0), last = limits_of(work, V.query_rows - 1);
    return key < last.begin || key + V.block_n > first.end;
  }
  /// Brings scores under the cap, where there is one.
  template <int count>
  TANDEM_DEVICE void cap(float (&scores)[count]) const {
    if (args.score_to_cap == 0.f) return;
    TANDEM_UNROLL
    for (float& score : scores) score = hw::tanh(score * args.score_to_cap);
  }

  TANDEM_DEVICE int page_of(const WorkTile& work, int key) const {
    return page_of_key(args.pages, entry_of(args.pages, work.sequence), key);
  }
  /// A key's row in its page.
  TANDEM_DEVICE int row_of(int key) const {
    return static_cast<int>(static_cast<std::uint32_t>(key) & ((1u << args.pages.page_shift) - 1));
  }

 private:
  TANDEM_DEVICE static void release(tile::Pipeline<V.stages>& pipeline, tile::PipelineState<V.stages>& at) {
    tile::consumer_release(pipeline, at);
    at.advance();
    if constexpr (V.splits_keys()) at.advance();
  }

  /// Of those that visit the same block of keys: the thread's number, and their barrier.
  TANDEM_DEVICE static int visitor() {
    const int thread = static_cast<int>(hw::thread_index());
    return V.splits_keys() ? thread % V.threads_of_block() : thread;
  }
  TANDEM_DEVICE static void sync_visitors() {
    if constexpr (!V.splits_keys()) return sync_consumers<V>();
    hw::sync_named(static_cast<std::uint32_t>(NamedBarrier::first_warpgroup) +
                       static_cast<std::uint32_t>(own_warpgroup<V>()),
                   V.threads_of_block());
  }

  /// Of a column of keys or queries in shared memory: whether it is of the part that is rotated, and its
  /// place in that part's rows.
  struct Part {
    bool rotated;
    int column;

    TANDEM_DEVICE explicit Part(int tile_column)
        : rotated(!V.two_part_keys || tile_column >= V.value_dim),
          column(V.two_part_keys && rotated ? tile_column - V.value_dim : tile_column) {}
  };

  /// Where a chunk of a row tile's queries lies.
  struct QueryPlace {
    int tile_row, column, position;
    Part part;
    const std::uint16_t* row;
    bool exists;

    TANDEM_DEVICE QueryPlace(const Consumer& consumer, const WorkTile& work, int chunk)
        : tile_row(chunk / row_chunks), column(chunk % row_chunks * tile::chunk_columns), part(column) {
      const DecodeArguments& args = consumer.args;
      const auto [token, head] = args.group.divide(work.row_tile * V.query_rows + tile_row);
      position = work.keys - consumer.queries_of(work) + token;
      const core::TensorView& q = part.rotated ? args.q : args.qv;
      row = static_cast<const std::uint16_t*>(q.data) +
            row_of_query<V>(q, work, token, work.head * args.group.value() + head);
      exists = tile_row < rows_of_tile<V>(args, work) && column < consumer.key_columns();
    }
  };
  /// Of chunk `i` of those that the thread has from `first` on.
  TANDEM_DEVICE QueryPlace query_place(const WorkTile& work, int first, int i) const {
    return QueryPlace(*this, work, first + i * V.consumer_threads());
  }
  TANDEM_DEVICE static tile::Chunk fetch_chunk(const QueryPlace& at) {
    tile::Chunk chunk{};
    if (at.exists) chunk = tile::load_chunk(at.row + at.part.column);
    return chunk;
  }
  TANDEM_DEVICE void place_chunk(const QueryPlace& at, const tile::Chunk& fetched) {
    tile::Chunk chunk = fetched;
    if (!V.lists_queries() && at.exists && at.part.rotated)
      chunk = tile::rotated_chunk<V.operand>(chunk, at.row, at.part.column, args.rotary, at.position);
    if constexpr (V.eight_bit()) {
      place_permuted(*this, at.tile_row, at.column, chunk);
    } else {
      if (at.tile_row < V.query_rows) shared.q.chunk(at.tile_row, at.column) = chunk;
    }
  }
  TANDEM_DEVICE static void publish_queries() {
    hw::fence_async_proxy();
    sync_consumers<V>();
  }

  /// Behind the rows of the block at `key` that TMA may have brought from memory: past a cache's capacity it
  /// brings zeros. Listed sequences lie behind one another, or may have less than their entry has room for.
  TANDEM_DEVICE int past_brought_rows(int key) const {
    const int past = key + V.block_n;
    if constexpr (V.lists_queries()) return past;
    return past < args.units.capacity ? past : args.units.capacity;
  }

  /// Rows of the block from the sequence's end on: those of new tokens come from k_new and v_new (and go to
  /// the cache); beyond them values become 0, since a probability of 0 times what lies there may be NaN.
  /// Scores of keys beyond are masked, whatever they are.
  TANDEM_DEVICE void replace_rows(const WorkTile& work, int key) {
    const int first = key > work.length ? key : work.length;
    const int chunks = (past_brought_rows(key) - first) * row_chunks;
    for (int i = visitor(); i < chunks; i += V.threads_of_block()) {
      const int own_key = first + i / row_chunks, column = i % row_chunks * tile::chunk_columns;
      tile::Chunk& v = chunk_of(values(), own_key - key, column);
      if (!V.lists_queries() && own_key < work.keys && column < key_columns()) {
        append(work, own_key, column, chunk_of(shared.k[k_at.stage], own_key - key, column), v);
      } else {
        v = tile::Chunk{};
      }
    }
  }

  TANDEM_DEVICE static tile::Chunk& chunk_of(typename DecodeShared<V>::KeyBlock& block, int row, int column) {
    constexpr int tile_keys = DecodeShared<V>::tile_keys;
    return block.tile[row / tile_keys].chunk(row % tile_keys, column);
  }

  /// A piece of a new token's key and value. One row tile of those that visit the key stores it in the cache.
  TANDEM_DEVICE void append(const WorkTile& work, int key, int column, tile::Chunk& k, tile::Chunk& v) {
    if constexpr (V.two_part_keys) return append_part(work, key, Part(column), k);
    const int token = key - work.length;
    const auto* k_new = static_cast<const std::uint16_t*>(args.k_new.data);
    const auto* v_new = static_cast<const std::uint16_t*>(args.v_new.data);
    // By way of registers: the simulator does not see what a call returns into shared memory.
    const tile::Chunk new_k = tile::load_rotated<V.operand>(
        k_new + args.k_new.at(work.sequence, token, work.head), column, args.rotary, key);
    k = new_k;
    tile::Chunk new_v{};
    if constexpr (!V.values_in_keys()) {
      new_v = tile::load_chunk(v_new + args.v_new.at(work.sequence, token, work.head) + column);
      v = new_v;
    }
    if (work.row_tile != 0 || key >= work.end) return;
    const int page = page_of(work, key);
    if (page < 0 || page >= args.pages.pages) return;
    const int row = row_of(key);
    auto* k_cache = static_cast<std::uint16_t*>(args.k_cache.data);
    auto* v_cache = static_cast<std::uint16_t*>(args.v_cache.data);
    hw::store_global(k_cache + args.k_cache.at(page, row, work.head) + column, new_k.words);
    if constexpr (!V.values_in_keys())
      hw::store_global(v_cache + args.v_cache.at(page, row, work.head) + column, new_v.words);
  }

  /// The same of keys of two parts, each with a tensor of its own.
  TANDEM_DEVICE void append_part(const WorkTile& work, int key, const Part& part, tile::Chunk& k) {
    const core::TensorView& added = part.rotated ? args.k_new : args.v_new;
    const core::TensorView& cache = part.rotated ? args.k_cache : args.v_cache;
    const auto* row = added.template row<const std::uint16_t>(work.sequence, key - work.length, work.head);
    tile::Chunk own = tile::load_chunk(row + part.column);
    if (part.rotated) own = tile::rotated_chunk<V.operand>(own, row, part.column, args.rotary, key);
    k = own;
    if (work.row_tile != 0 || key >= work.end) return;
    const int page = page_of(work, key);
    if (page < 0 || page >= args.pages.pages) return;
    hw::store_global(cache.template row<std::uint16_t>(page, row_of(key), work.head) + part.column,
                     own.words);
  }
};

}  // namespace tandem::decode
