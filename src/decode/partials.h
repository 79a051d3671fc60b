// Results on their way out: directly where a block has visited all keys of a stream; else as fp32 partial
// results, which the last block to arrive merges, or for wide tiles a kernel of its own (combine.h). Nobody
// waits for anybody.
//
// Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding", 2023, for the merge; the counter is the pattern of
// CUDA's threadFenceReduction sample.
#pragma once

#include <bit>
#include <cstdint>
#include <numbers>

#include "core/integers.h"
#include "decode/consumer.h"
#include "hw/hw.h"
#include "tile/softmax.h"
#include "tile/warp_reduce.h"

namespace tandem::decode {

/// Where the partial results of the work tile's stream lie, and how many blocks make them. Free shares: a
/// block has two places, for a stream that began before its share and for one that begins within. Fixed
/// splits: every unit has its own.
struct StreamParts {
  int first_block;  ///< that visits the stream; its counter is the stream's
  int blocks, parts;
  int own;                ///< place of the work tile's
  int first, next, step;  ///< places of parts 0 and 1; further ones every `step`

  TANDEM_DEVICE int place(int part) const { return part == 0 ? first : next + (part - 1) * step; }
};

/// Many parts of free shares, in groups that are merged before the groups are. The block of a group's second
/// part visits no other stream: its counter and its second place are the group's.
struct PartGroups {
  int count, size;  ///< the last one has what is left: at least 2, of up to 240 parts

  /// Of `most` parts each.
  TANDEM_DEVICE PartGroups(const StreamParts& all, int most)
      : count((all.parts + most - 1) / most), size((all.parts + count - 1) / count) {}

  /// The group of the block's own part.
  TANDEM_DEVICE StreamParts own(const StreamParts& all) const {
    const int own_part = all.own == all.first ? 0 : 1 + (all.own - all.next) / all.step;
    const int index = own_part / size, begin = index * size;
    const int parts = index == count - 1 ? all.parts - begin : size, second = all.place(begin + 1);
    return {second / 2, parts, parts, all.own, all.place(begin), second, all.step};
  }
  TANDEM_DEVICE static int result_of(const StreamParts& group) { return group.next + 1; }
  /// The groups' results.
  TANDEM_DEVICE StreamParts results(const StreamParts& all) const {
    const int next = all.next + size * all.step + 1;
    return {all.first_block, count, count, all.own, all.next + 1, next, size * all.step};
  }
};

/// `block`: whose place is asked for, of those that visit the stream.
template <typename Scheduler>
TANDEM_DEVICE StreamParts parts_of(const DecodeArguments& args, const Scheduler& scheduler,
                                   const WorkTile& work, int block) {
  const core::Shares& shares = scheduler.shares();
  const int team_blocks = scheduler.team_blocks(), member = scheduler.member();
  // Behind a plan of shorter sequences there are no teams.
  const int first_team = shares.owner(work.stream_begin), end_team = shares.owner(work.stream_end - 1),
            last_team = end_team < shares.blocks() ? end_team : shares.blocks() - 1;
  const int first_block = first_team * team_blocks + member, teams = last_team - first_team + 1;
  if (args.fixed_splits) {
    const auto place = [&](int unit) { return unit * team_blocks + member; };
    return {first_block,
            teams,
            work.stream_end - work.stream_begin,
            place(work.first_unit),
            place(work.stream_begin),
            place(work.stream_begin + 1),
            team_blocks};
  }
  const int first = 2 * first_block + (work.stream_begin > shares.begin(first_team) ? 1 : 0);
  return {first_block,    teams,
          teams,          block == first_block ? first : 2 * block,
          first,          2 * (first_block + team_blocks),
          2 * team_blocks};
}

/// The same where the block knows its stream: the parts' blocks stand so many streams apart.
template <typename Scheduler>
TANDEM_DEVICE StreamParts known_parts_of(const DecodeArguments& args, const Scheduler& scheduler,
                                         const WorkTile& work, int block) {
  const int share = scheduler.known_share(work.stream_end), streams = args.streams.value();
  const int parts = (work.stream_end + share - 1) / share;
  const int first_block = block - work.first_unit / share * streams;
  return {first_block, parts, parts, 2 * block, 2 * first_block, 2 * (first_block + streams), 2 * streams};
}

/// Of the block at work. Kernels whose parts are merged apart know whole streams only.
template <DecodeVariant V>
TANDEM_DEVICE StreamParts own_parts(const DecodeArguments& args, const SplitSchedulerOf<V>& scheduler,
                                    const WorkTile& work) {
  const int block = static_cast<int>(hw::block_index());
  if constexpr (!V.merges_apart()) {
    if (scheduler.knows_stream()) return known_parts_of(args, scheduler, work, block);
  }
  return parts_of(args, scheduler, work, block);
}

/// Writes rows of a tile to o and lse.
template <auto V>
struct OutputRows {
  const DecodeArguments& args;
  const WorkTile& work;
  int rows;  ///< that exist

  TANDEM_DEVICE OutputRows(const DecodeArguments& arguments, const WorkTile& of)
      : args(arguments), work(of), rows(rows_of_tile<V>(arguments, of)) {}

  TANDEM_DEVICE std::int64_t offset(const core::TensorView& view, int tile_row) const {
    const auto [token, head] = args.group.divide(work.row_tile * V.query_rows + tile_row);
    return row_of_query<V>(view, work, token, work.head * args.group.value() + head);
  }
  /// Neighbouring elements of a row, two in a word. Kept in L2 among all the keys and values that pass
  /// through it once: the next layer reads them, and what goes to memory meanwhile holds up the reads there.
  template <int words>
  TANDEM_DEVICE void store(int tile_row, int column, const std::uint32_t (&elements)[words]) const {
    if (tile_row >= rows || column >= args.value_dim) return;
    hw::store_kept(static_cast<std::uint16_t*>(args.o.data) + offset(args.o, tile_row) + column, elements);
  }
  /// The same where results are fp32 parts: an element in a word.
  template <int words>
  TANDEM_DEVICE void store_part(int tile_row, int column, const std::uint32_t (&elements)[words]) const {
    if (tile_row >= rows || column >= args.value_dim) return;
    hw::store_kept(static_cast<float*>(args.o.data) + offset(args.o, tile_row) + column, elements);
  }
  /// The row's head's, as an exponent of 2.
  TANDEM_DEVICE float sink(int tile_row) const {
    if (tile_row >= rows || args.sinks == nullptr) return tile::minus_infinity;
    if constexpr (V.shares_prefixes()) {  // a row's sink counts once, in its own part
      if (work.listed.first_key == core::shared_prefix) return tile::minus_infinity;
    }
    const auto [token, head] = args.group.divide(work.row_tile * V.query_rows + tile_row);
    return hw::load_global(args.sinks + work.head * args.group.value() + head) * std::numbers::log2e_v<float>;
  }
  /// `sum` of probabilities 2^(score - reference).
  TANDEM_DEVICE FinishedRow finished(int tile_row, float reference, float sum) const {
    return finish_row(reference, sum, sink(tile_row));
  }
  TANDEM_DEVICE void store_lse(int tile_row, float lse) const {
    if (tile_row >= rows || args.lse.data == nullptr) return;
    hw::store_global(static_cast<float*>(args.lse.data) + offset(args.lse, tile_row), lse);
  }
};

/// By way of the queries' place in shared memory, so that a row is stored in chunks of 16 bytes.
template <DecodeVariant V, typename Result>
TANDEM_DEVICE void store_final(Consumer<V>& consumer, const WorkTile& work, Result& result) {
  const OutputRows<V> out(consumer.args, work);
  result.for_each_row([&](int row, float reference, float sum) {
    out.store_lse(row, out.finished(row, reference, sum).lse);
  });
  result.normalise(
      [&](int row, float reference, float sum) { return out.finished(row, reference, sum).factor; });
  if constexpr (V.shares_prefixes()) {
    result.for_each_piece([&](int row, auto column, auto... x) {
      out.store_part(row, static_cast<int>(column), {std::bit_cast<std::uint32_t>(x)...});
    });
    return;
  }
  // Free: warps have met since the last product with the queries, or write only rows that they multiplied.
  auto& rounded = consumer.shared.q;
  result.round_to(rounded);
  sync_consumers<V>();
  constexpr int row_chunks = V.value_dim / tile::chunk_columns;
  for (int chunk = static_cast<int>(hw::thread_index_anew()); chunk < out.rows * row_chunks;
       chunk += V.consumer_threads()) {
    const int row = chunk / row_chunks;
    const int column = chunk % row_chunks * tile::chunk_columns;
    out.store(row, column, rounded.chunk(row, column).words);
  }
}

template <DecodeVariant V, typename Result>
TANDEM_DEVICE void store_partial(const DecodeArguments& args, const WorkTile& work, int place,
                                 const Result& result) {
  constexpr PartialLayout layout{V.partial_rows(), V.value_dim};
  float* partial = args.partials + place * layout.floats();
  const int rows = rows_of_tile<V>(args, work);
  result.for_each_row([&](int row, float reference, float sum) {
    if (row >= rows) return;
    hw::store_kept(partial + layout.statistics(row),
                   {std::bit_cast<std::uint32_t>(reference), std::bit_cast<std::uint32_t>(sum)});
  });
  result.for_each_piece([&](int row, auto column, auto... x) {
    if (row < rows)
      hw::store_kept(partial + layout.output(row, column), {std::bit_cast<std::uint32_t>(x)...});
  });
}

/// Counts the block in; true in all threads of the last one, which then sees what the others stored: the
/// atomic releases what the barrier before it has collected, and acquires for the barrier behind it. The
/// counter is 0 again then.
template <DecodeVariant V>
TANDEM_DEVICE bool arrive_last(Consumer<V>& consumer, const StreamParts& parts) {
  sync_consumers<V>();
  if (hw::thread_index() == 0) {
    bool last = true;
    if (parts.blocks > 1) {
      std::uint32_t* counter = consumer.args.counters + parts.first_block;
      last = hw::atomic_add(counter, 1u) + 1 == static_cast<std::uint32_t>(parts.blocks);
      if (last) hw::store_global(counter, 0u);
    }
    consumer.shared.last_arriver = last ? 1u : 0u;
  }
  sync_consumers<V>();
  return consumer.shared.last_arriver != 0;
}

/// What a group of parts counts for. Lane l looks after part l % group of the row of its chunk; `lanes`, a
/// multiple of it, have the same row.
template <int group, int lanes>
struct PartWeights {
  float reference, sum;  ///< of the group
  float own;             ///< weight of the lane's part

  /// From the statistics of the lane's part: tile::no_reference and 0 where there is none.
  TANDEM_DEVICE PartWeights(float own_reference, float own_sum)
      : reference(tile::warp_max<group>(own_reference)) {
    own = hw::exp2(own_reference - reference);
    sum = tile::warp_sum<group>(own_sum * own);
  }
  /// Of any part, to all lanes.
  TANDEM_DEVICE float of(int part) const {
    const std::uint32_t first = lanes >= hw::warp_size ? 0 : hw::lane_index() / lanes * lanes;
    return hw::shuffle(own, first + static_cast<std::uint32_t>(part));
  }
};

/// Four neighbouring elements of a row, summed over groups of partial results.
struct MergedChunk {
  float reference = tile::no_reference, sum = 0.f;
  float values[4] = {};

  template <int group, int lanes>
  TANDEM_DEVICE void add(const PartWeights<group, lanes>& weights, const std::uint32_t (&words)[group][4]) {
    float added[4] = {};
    TANDEM_UNROLL
    for (int p = 0; p < group; ++p) {
      const float weight = weights.of(p);
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) added[i] = hw::fma(std::bit_cast<float>(words[p][i]), weight, added[i]);
    }
    const float last = reference;
    reference = hw::max(last, weights.reference);
    const float old_factor = hw::exp2(last - reference), factor = hw::exp2(weights.reference - reference);
    sum = hw::fma(weights.sum, factor, sum * old_factor);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) values[i] = hw::fma(added[i], factor, values[i] * old_factor);
  }
};

/// Where a merge's result goes that is not a part of another: to o and lse.
inline constexpr int to_output = -1;

/// Merges parts of a stream. The rows' chunks of four elements are distributed over the threads, round after
/// round; a warp has everything in flight that it needs of a group of parts, for a few rounds, before it uses
/// the first.
template <auto V>
struct Merge {
  static constexpr int row_chunks = V.value_dim / 4;
  static_assert(V.query_rows * row_chunks % hw::warp_size == 0, "the last lane's chunk is one of the tile");
  static constexpr int group = V.merge_group(), rounds = V.merge_rounds();
  static_assert(row_chunks % group == 0);

  const DecodeArguments& args;
  const StreamParts& parts;
  const OutputRows<V>& out;
  int into;  ///< place of a partial result that these become, or to_output

  TANDEM_DEVICE int chunks() const { return out.rows * row_chunks; }
  /// Whether the warp whose first lane has this chunk, which exists, has any in round r from there.
  TANDEM_DEVICE bool has_round(int first_chunk, int r) const {
    return r == 0 || first_chunk + r * V.consumer_threads() < chunks();
  }

  TANDEM_DEVICE const float* partial(int part) const {
    constexpr PartialLayout layout{V.partial_rows(), V.value_dim};
    return args.partials + parts.place(part) * layout.floats();
  }

  /// Adds the group of parts from `first` on to the chunks of the rounds from `first_chunk` on.
  TANDEM_DEVICE void add_group(MergedChunk (&merged)[rounds], int first_chunk, int first) const {
    constexpr PartialLayout layout{V.partial_rows(), V.value_dim};
    const int lane = static_cast<int>(hw::lane_index()), chunk = first_chunk + lane;
    const int own = lane % group, count = parts.parts - first;
    const float* statistics = partial(first + (own < count ? own : 0));
    const std::int64_t stride = parts.step * layout.floats();
    const float *words_at = partial(first) + 4 * chunk, *next_at = partial(first + 1) + 4 * chunk;

    float reference[rounds], sum[rounds];
    std::uint32_t words[rounds][group][4] = {};  // of parts that don't exist too: they count for 0
    TANDEM_UNROLL
    for (int r = 0; r < rounds; ++r) {
      // A warp's later rounds may not exist: it reads the first one's again then, and does not use it.
      const int row = (chunk + (has_round(first_chunk, r) ? r * V.consumer_threads() : 0)) / row_chunks;
      reference[r] = hw::load_global(statistics + layout.statistics(row));
      sum[r] = hw::load_global(statistics + layout.statistics(row) + 1);
    }
    TANDEM_UNROLL
    for (int p = 0; p < group; ++p) {
      TANDEM_UNROLL
      for (int r = 0; r < rounds; ++r) {
        if (p < count && has_round(first_chunk, r))
          hw::load_global(words[r][p], words_at + 4 * r * V.consumer_threads());
      }
      words_at = p == 0 ? next_at : words_at + stride;
    }
    TANDEM_UNROLL
    for (int r = 0; r < rounds; ++r) {
      if (!has_round(first_chunk, r)) continue;
      const PartWeights<group, row_chunks> weights(own < count ? reference[r] : tile::no_reference,
                                                   own < count ? sum[r] : 0.f);
      merged[r].add(weights, words[r]);
    }
  }

  /// As store_partial does.
  TANDEM_DEVICE void store_partly(const MergedChunk& merged, int row, int column) const {
    constexpr PartialLayout layout{V.partial_rows(), V.value_dim};
    float* partial = args.partials + into * layout.floats();
    const auto word = [](float x) { return std::bit_cast<std::uint32_t>(x); };
    if (column == 0)
      hw::store_kept(partial + layout.statistics(row), {word(merged.reference), word(merged.sum)});
    const float(&values)[4] = merged.values;
    hw::store_kept(partial + layout.output(row, column),
                   {word(values[0]), word(values[1]), word(values[2]), word(values[3])});
  }

  TANDEM_DEVICE void store(MergedChunk& merged, int chunk) const {
    const int row = chunk / row_chunks, column = chunk % row_chunks * 4;
    if (into != to_output) return store_partly(merged, row, column);
    const FinishedRow finished = out.finished(row, merged.reference, merged.sum);
    if (column == 0) out.store_lse(row, finished.lse);
    TANDEM_UNROLL
    for (float& value : merged.values) value *= finished.factor;
    if constexpr (V.shares_prefixes()) {
      const auto word = [&](int i) { return std::bit_cast<std::uint32_t>(merged.values[i]); };
      return out.store_part(row, column, {word(0), word(1), word(2), word(3)});
    }
    out.store(row, column,
              {hw::pack<V.operand>(merged.values[0], merged.values[1]),
               hw::pack<V.operand>(merged.values[2], merged.values[3])});
  }
};

/// Of the rounds over a tile's chunks, those that one block makes: every `count`-th.
struct Slice {
  int index = 0, count = 1;
};

/// Merges parts of the work tile's stream, in their order.
template <auto V>
TANDEM_DEVICE void merge(const DecodeArguments& args, const WorkTile& work, const StreamParts& parts,
                         int into, const Slice& slice = {}) {
  const OutputRows<V> out(args, work);
  const Merge<V> merge{args, parts, out, into};
  constexpr int stride = merge.rounds * V.consumer_threads();
  for (int chunk = slice.index * stride + static_cast<int>(hw::warp_index()) * hw::warp_size;
       chunk < merge.chunks(); chunk += slice.count * stride) {
    MergedChunk merged[merge.rounds];
    for (int first = 0; first < parts.parts; first += merge.group) merge.add_group(merged, chunk, first);
    TANDEM_UNROLL
    for (int r = 0; r < merge.rounds; ++r) {
      if (!merge.has_round(chunk, r)) continue;
      merge.store(merged[r], chunk + r * V.consumer_threads() + static_cast<int>(hw::lane_index()));
    }
  }
}

/// The last block to arrive merges. Of many parts, the last one of each group does at first, and then the
/// last one of these: one block alone would read group after group.
template <DecodeVariant V>
TANDEM_DEVICE void merge_if_last(Consumer<V>& consumer, const WorkTile& work, const StreamParts& parts) {
  if constexpr (V.merges_in_groups()) {
    bool all = consumer.args.fixed_splits || !V.merges_in_groups(parts.parts);
    StreamParts now = parts;
    if (!all) now = PartGroups(parts, V.merge_group()).own(parts);
    TANDEM_DONT_UNROLL
    while (arrive_last(consumer, now)) {
      merge<V>(consumer.args, work, now, all ? to_output : PartGroups::result_of(now));
      if (all) return;
      now = PartGroups(parts, V.merge_group()).results(parts), all = true;
    }
  } else if (arrive_last(consumer, parts)) {
    merge<V>(consumer.args, work, parts, to_output);
  }
}

/// The work tile's keys have been visited.
template <DecodeVariant V, typename Result>
TANDEM_DEVICE void finish_work(Consumer<V>& consumer, const SplitSchedulerOf<V>& scheduler,
                               const WorkTile& work, Result& result) {
  if (work.whole_stream()) {
    store_final(consumer, work, result);
    return;
  }
  const StreamParts parts = own_parts<V>(consumer.args, scheduler, work);
  store_partial<V>(consumer.args, work, parts.own, result);
  if constexpr (!V.never_merges()) {
    if constexpr (V.merges_apart()) {
      if (consumer.args.merges_apart) return;
    }
    const bool more_here = !scheduler.knows_stream() && work.past_unit < work.stream_end &&
                           work.past_unit < scheduler.share_end();
    if (!more_here) merge_if_last(consumer, work, parts);
  }
}

}  // namespace tandem::decode
