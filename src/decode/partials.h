// Results on their way out: directly where a block has walked all keys of a stream; else as fp32 partial
// results, which the last block to arrive merges. Nobody waits for anybody.
//
// Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding", 2023, for the merge; the counter is the pattern of
// CUDA's threadFenceReduction sample.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "decode/consumer.h"
#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::decode {

/// Where the partial results of the item's stream lie, and how many blocks make them. Free shares: a block
/// has two places, for a stream that began before its share and for one that begins within. Fixed splits:
/// every unit has its own.
struct StreamParts {
  int first_block;  ///< that walks the stream
  int blocks, parts;
  int own;                ///< place of the item's
  int first, next, step;  ///< places of parts 0 and 1; further ones every `step`

  TANDEM_DEVICE int place(int part) const { return part == 0 ? first : next + (part - 1) * step; }
};

TANDEM_DEVICE StreamParts parts_of(const DecodeArguments& args, const Walker& walker, const Item& item) {
  const core::Shares& shares = walker.shares();
  const int abreast = args.abreast.value(), member = walker.member();
  const int first_team = shares.owner(item.stream_begin), last_team = shares.owner(item.stream_end - 1);
  const int first_block = first_team * abreast + member, teams = last_team - first_team + 1;
  if (args.fixed_splits) {
    const auto place = [&](int unit) { return unit * abreast + member; };
    return {first_block,
            teams,
            item.stream_end - item.stream_begin,
            place(item.first_unit),
            place(item.stream_begin),
            place(item.stream_begin + 1),
            abreast};
  }
  const int block = static_cast<int>(hw::block_index());
  const int first = 2 * first_block + (item.stream_begin > shares.begin(first_team) ? 1 : 0);
  return {
      first_block, teams, teams, block == first_block ? first : 2 * block, first, 2 * (first_block + abreast),
      2 * abreast};
}

/// Writes rows of a tile to o and lse.
template <DecodeVariant V>
struct OutputRows {
  const DecodeArguments& args;
  const Item& item;
  int rows;  ///< that exist

  TANDEM_DEVICE OutputRows(const DecodeArguments& arguments, const Item& of)
      : args(arguments), item(of), rows(rows_of_tile(arguments, of, V.columns)) {}

  TANDEM_DEVICE std::int64_t offset(const TensorView& view, int tile_row) const {
    const auto [token, head] = args.group.divide(item.row_tile * V.columns + tile_row);
    return view.at(item.sequence, token, item.head * args.group.value() + head);
  }
  TANDEM_DEVICE void store_pair(int tile_row, int column, float x, float y) const {
    if (tile_row >= rows) return;
    auto* o = static_cast<std::uint16_t*>(args.o.data) + offset(args.o, tile_row) + column;
    hw::store_global(reinterpret_cast<std::uint32_t*>(o), hw::pack<V.operand>(x, y));
  }
  /// `max` is an exponent of 2.
  TANDEM_DEVICE void store_lse(int tile_row, float max, float sum) const {
    if (tile_row >= rows || args.lse.data == nullptr) return;
    const float lse =
        sum == 0.f ? -std::numeric_limits<float>::infinity() : tile::ln_2 * (max + hw::log2(sum));
    hw::store_global(static_cast<float*>(args.lse.data) + offset(args.lse, tile_row), lse);
  }
};

template <DecodeVariant V, typename Result>
TANDEM_DEVICE void store_final(const DecodeArguments& args, const Item& item, Result& result) {
  const OutputRows<V> out(args, item);
  result.for_each_row(args.scale_log2, [&](int row, float max, float sum) { out.store_lse(row, max, sum); });
  result.normalise();
  result.for_each_pair([&](int row, int column, float x, float y) { out.store_pair(row, column, x, y); });
}

template <DecodeVariant V, typename Result>
TANDEM_DEVICE void store_partial(const DecodeArguments& args, const Item& item, int place,
                                 const Result& result) {
  constexpr PartialLayout layout{V.columns, V.head_dim};
  float* partial = args.partials + place * layout.floats();
  const int rows = rows_of_tile(args, item, V.columns);
  result.for_each_row(args.scale_log2, [&](int row, float max, float sum) {
    if (row >= rows) return;
    hw::store_global(partial + layout.statistics(row), max);
    hw::store_global(partial + layout.statistics(row) + 1, sum);
  });
  result.for_each_pair([&](int row, int column, float x, float y) {
    if (row >= rows) return;
    hw::store_global(partial + layout.output(row, column), x);
    hw::store_global(partial + layout.output(row, column) + 1, y);
  });
}

/// Counts the block in; true in all threads of the last one, which then sees what the others stored: the
/// atomic releases what the barrier before it has collected, and acquires for the barrier behind it. The
/// counter is 0 again then.
template <DecodeVariant V>
TANDEM_DEVICE bool arrive_last(Consumer<V>& consumer, const StreamParts& parts) {
  sync_consumers();
  if (hw::thread_index() == 0) {
    bool last = true;
    if (parts.blocks > 1) {
      std::uint32_t* counter = consumer.args.counters + parts.first_block;
      last = hw::atomic_add(counter, 1u) + 1 == static_cast<std::uint32_t>(parts.blocks);
      if (last) hw::store_global(counter, 0u);
    }
    consumer.shared.last_arriver = last ? 1u : 0u;
  }
  sync_consumers();
  return consumer.shared.last_arriver != 0;
}

/// Four neighbouring elements of a row, summed over partial results.
struct MergedChunk {
  float max = -std::numeric_limits<float>::infinity(), sum = 0.f;
  float values[4] = {};

  TANDEM_DEVICE void add(float other_max, float other_sum, const std::uint32_t (&words)[4]) {
    const float new_max = hw::max(max, other_max);
    const float offset = new_max == -std::numeric_limits<float>::infinity() ? 0.f : new_max;
    const float own_weight = hw::exp2(max - offset), other_weight = hw::exp2(other_max - offset);
    max = new_max;
    sum = hw::fma(other_sum, other_weight, sum * own_weight);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      values[i] = hw::fma(std::bit_cast<float>(words[i]), other_weight, values[i] * own_weight);
    }
  }
};

/// Merges all parts of the item's stream, in their order.
template <DecodeVariant V>
TANDEM_DEVICE void merge(const DecodeArguments& args, const Item& item, const StreamParts& parts) {
  constexpr PartialLayout layout{V.columns, V.head_dim};
  constexpr int row_chunks = V.head_dim / 4, at_once = 8;
  const OutputRows<V> out(args, item);
  for (int i = static_cast<int>(hw::thread_index()); i < out.rows * row_chunks;
       i += DecodeVariant::consumer_threads) {
    const int row = i / row_chunks, column = i % row_chunks * 4;
    MergedChunk merged;
    for (int first = 0; first < parts.parts; first += at_once) {
      std::uint32_t words[at_once][4];
      float max[at_once], sum[at_once];
      TANDEM_UNROLL
      for (int p = 0; p < at_once; ++p) {  // all loads before the first use
        const int part = first + p < parts.parts ? first + p : parts.parts - 1;
        const float* partial = args.partials + parts.place(part) * layout.floats();
        max[p] = hw::load_global(partial + layout.statistics(row));
        sum[p] = hw::load_global(partial + layout.statistics(row) + 1);
        hw::load_global(words[p], partial + layout.output(row, column));
      }
      TANDEM_UNROLL
      for (int p = 0; p < at_once; ++p) {
        if (first + p < parts.parts) merged.add(max[p], sum[p], words[p]);
      }
    }
    if (column == 0) out.store_lse(row, merged.max, merged.sum);
    const float factor = merged.sum == 0.f ? 0.f : hw::reciprocal(merged.sum);
    const auto& v = merged.values;
    out.store_pair(row, column, v[0] * factor, v[1] * factor);
    out.store_pair(row, column + 2, v[2] * factor, v[3] * factor);
  }
}

/// The item's keys have been walked.
template <DecodeVariant V, typename Result>
TANDEM_DEVICE void finish_item(Consumer<V>& consumer, const Walker& walker, const Item& item,
                               Result& result) {
  if (item.whole_stream()) {
    store_final<V>(consumer.args, item, result);
    return;
  }
  const StreamParts parts = parts_of(consumer.args, walker, item);
  store_partial<V>(consumer.args, item, parts.own, result);
  const bool more_here = item.past_unit < item.stream_end && item.past_unit < walker.share_end();
  if (!more_here && arrive_last(consumer, parts)) merge<V>(consumer.args, item, parts);
}

}  // namespace tandem::decode
