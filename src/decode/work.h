// Which keys of which streams a block visits: the same answer for the producer and the consumer warps, each
// of which finds it for itself.
//
// Blocks go in teams. Where a sequence's streams are few enough, a team has a block for each of them, and its
// blocks read the same keys side by side: a token's heads lie next to one another, so that memory is read in
// long pieces. Otherwise a team is one block, which visits the streams one after another. In between, a long
// step has fewer streams side by side where that leaves fewer multiprocessors over.
//
// Where there is a block for each stream, or for so many parts of each, a block may know its own by its
// number, whatever the lengths of others: its queries, and keys that every length begins with, are on their
// way before any length has come.
//
// Where all sequences have as many units, no position is spent on overhead: equal shares have about as many
// streams each anyway, and boundaries stay at streams' ends where those are multiples of a share. Where
// shares are parts of a stream, streams are filled up with positions to multiples of it.
#pragma once

#include <type_traits>

#include "core/listed_queries.h"
#include "core/shared_prefixes.h"
#include "core/stream_k.h"
#include "core/varlen.h"
#include "decode/arguments.h"
#include "decode/variant.h"
#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::decode {

/// A sequence whose queries are packed, as it would be listed, whatever the numbers are. Of one without
/// queries nobody reads keys.
TANDEM_DEVICE core::ListedSequence packed_sequence(const DecodeArguments& args, int sequence) {
  const std::int32_t* cu_seqlens = args.packed.cu_seqlens + sequence;
  const int begin = hw::load_global(cu_seqlens), past = hw::load_global(cu_seqlens + 1);
  const int keys = args.lengths == nullptr ? args.units.capacity : hw::load_global(args.lengths + sequence);
  const core::RowSpan queries = core::span_of(begin, past, args.packed.rows, args.units.q_len);
  return {queries.length > 0 ? keys : 0, queries.length, sequence, 0, 0, queries.begin};
}

/// A run of units of one stream.
struct WorkTile {
  int sequence;                  ///< negative: there is no more work
  int head, row_tile;            ///< key/value head; tile of query rows
  int length, keys;              ///< of the sequence: in the cache, and with those that are appended
  int begin, end;                ///< keys to visit; none where begin == end
  int first_unit, past_unit;     ///< positions (core/stream_k.h) in what a team's member visits; of this work
  int stream_begin, stream_end;  ///< of its stream's units
  core::ListedSequence listed = {};  ///< where queries are listed

  TANDEM_DEVICE bool exists() const { return sequence >= 0; }
  TANDEM_DEVICE bool begins_stream() const { return exists() && first_unit == 0; }
  TANDEM_DEVICE bool whole_stream() const { return first_unit == stream_begin && past_unit == stream_end; }
};

/// Where a block's share of all positions begins: `position` is the first one of sequence `sequence`.
struct ShareStart {
  int sequence, position;
};

/// Walks the share of one block. All lanes of the warp call every function together; lane l knows the units
/// of sequence window + l. `long_steps`, `known_streams`: whether there are any.
template <bool long_steps, Queries kind = Queries::uniform, bool known_streams = false>
class SplitScheduler {
 public:
  TANDEM_DEVICE SplitScheduler(const DecodeArguments& args, int block)
      : args_(args), window_(-hw::warp_size), window_end_(0) {
    if constexpr (is_listed) {
      own_listed_.batch = args.batch, own_listed_.blocks = args.blocks;
      if (!is_packed()) read_header();
    }
    if (knows_stream()) {
      const int known = batch() * args.known_parts.value() * args.streams.value();
      position_ = block, end_ = block < known ? block + 1 : block;
      return;
    }
    int total = 0;
    if (args.plan != nullptr) {
      const std::int32_t* start = args.plan + plan_words(block);
      total = hw::load_global(args.plan);
      const int flags = hw::load_global(args.plan + 1);
      overhead_ = flags / 4, is_even_ = flags / 2 % 2 != 0, is_long_ = flags % 2;
      window_ = hw::load_global(start) - hw::warp_size;
      window_end_ = hw::load_global(start + 1);
    } else {
      total = count_positions();
    }
    const auto [team, member] =
        in_long_step() ? args.long_teams.team_blocks.divide(block) : args.teams.team_blocks.divide(block);
    member_ = member;
    shares_ = core::Shares(total, teams_with_share(in_long_step() ? args.long_teams : args.teams),
                           is_even_ ? args.even_share : args.min_share);
    position_ = shares_.begin(team);
    end_ = shares_.begin(team + 1);
  }

  TANDEM_DEVICE const core::Shares& shares() const { return shares_; }  ///< of the teams
  TANDEM_DEVICE int member() const { return member_; }                  ///< which of its team the block is
  /// Blocks of a team.
  TANDEM_DEVICE int team_blocks() const {
    return in_long_step() ? args_.long_teams.team_blocks.value() : args_.teams.team_blocks.value();
  }
  TANDEM_DEVICE int share_end() const { return end_; }
  TANDEM_DEVICE int total() const { return shares_.begin(shares_.blocks()); }
  /// Of step: what a plan says of it besides the positions.
  TANDEM_DEVICE int flags() const { return 4 * overhead_ + 2 * static_cast<int>(is_even_) + is_long_; }

  /// Whether the block has a part of one stream, which it knows without a length.
  TANDEM_DEVICE bool knows_stream() const { return known_streams && args_.known_streams; }
  /// That part before next(): `first_unit` is its number, and there are no lengths and no keys.
  TANDEM_DEVICE WorkTile known_stream() const {
    if (position_ >= end_) return {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const auto [team, stream] = args_.streams.divide(position_);
    const auto [sequence, part] = args_.known_parts.divide(team);
    const auto [head, row_tile] = args_.row_tiles.divide(stream);
    return {sequence, head, row_tile, 0, 0, 0, 0, part, 0, 0, 0};
  }
  /// The same with the sequence's queries.
  TANDEM_DEVICE WorkTile known_stream_and_queries() const {
    WorkTile work = known_stream();
    if constexpr (is_listed)
      if (work.exists()) work.listed = packed_sequence(args_, work.sequence);
    return work;
  }
  /// Units of a known part, but for the last one's, of a stream that has so many.
  TANDEM_DEVICE int known_share(int units) const {
    return args_.known_parts.divide(units + args_.known_parts.value() - 1).quotient;
  }

  /// Where the sequence at the share's position begins.
  TANDEM_DEVICE ShareStart start() {
    seek();
    const int lane = lane_of_position();
    return {window_ + lane, tile::of_lane(own_begin_, lane)};
  }

  /// The share's next work, from the first one on.
  TANDEM_DEVICE WorkTile next() {
    while (position_ < end_) {
      if (knows_stream()) return take_known_stream();
      if (!seek()) break;
      const int lane = lane_of_position();
      const core::StreamSpan span{tile::of_lane(own_.units, lane), overhead_};
      int within = position_ - tile::of_lane(own_begin_, lane), stream = 0;
      if (streams_per_block() > 1) stream = within / span.size(), within -= stream * span.size();
      const int skipped = span.to_next_unit(within);
      if (skipped == 0) return take(lane, stream, within, span);
      position_ += skipped;
    }
    return {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  }

 private:
  static constexpr bool is_listed = kind != Queries::uniform;
  /// What a lane knows of its sequence, and all lanes of the list.
  struct OwnListed {
    core::ListedSequence sequence;
    int batch;
    int blocks;  ///< of the grid that share them
  };
  struct NotListed {};
  /// Of a sequence, as the device says it.
  struct Lengths {
    int keys, queries;
    int first_key = 0;  ///< of a listed sequence
  };

  /// Whether queries are found without a list.
  TANDEM_DEVICE bool is_packed() const {
    return kind == Queries::listed && args_.packed.cu_seqlens != nullptr;
  }
  TANDEM_DEVICE int batch() const {
    if constexpr (is_listed) {
      return own_listed_.batch;
    } else {
      return args_.batch;
    }
  }
  TANDEM_DEVICE core::SequenceUnits units_of(const Lengths& lengths) const {
    if constexpr (kind == Queries::sharing) {
      if (lengths.first_key == core::shared_prefix) return args_.units.of_prefix(lengths.keys);
      return args_.units.behind(args_.units.of(lengths.keys, lengths.queries), lengths.first_key);
    }
    return args_.units.of(lengths.keys, lengths.queries);
  }

  /// Others find nothing to do.
  TANDEM_DEVICE core::Divisor teams_with_share(const Teams& teams) const {
    if constexpr (is_listed) {
      const int count = teams.team_blocks.divide(own_listed_.blocks).quotient;
      if (count < teams.count.value()) return core::Divisor(count < 1 ? 1 : count);
    }
    return teams.count;
  }

  /// Streams of a sequence that stand one after another.
  TANDEM_DEVICE int streams_per_block() const {
    return in_long_step() ? args_.long_teams.streams_per_block : args_.teams.streams_per_block;
  }
  /// Once `units` are known, of a stream of each sequence.
  TANDEM_DEVICE void choose_teams(int units) {
    if (units >= args_.long_step) is_long_ = 1;
  }
  TANDEM_DEVICE bool in_long_step() const { return long_steps && is_long_ != 0; }

  TANDEM_DEVICE WorkTile take_known_stream() {
    WorkTile work = known_stream_and_queries();
    if (!work.exists()) return work;
    position_ = end_;
    core::SequenceUnits own{};
    if constexpr (is_listed) {
      own = units_of({work.listed.keys, work.listed.queries});
    } else {
      own = units_of(lengths_of(work.sequence));
    }
    const int unit_keys = args_.units.unit.value(), share = known_share(own.units);
    const int first = work.first_unit * share, left = own.units - first, count = left < share ? left : share;
    const int first_key = (own.first_unit + first) * unit_keys, past_key = first_key + count * unit_keys;
    work.sequence = count > 0 ? work.sequence : -1;
    work.length = own.length, work.keys = own.keys;
    work.begin = first_key, work.end = past_key < own.keys ? past_key : own.keys;
    work.first_unit = first, work.past_unit = first + count, work.stream_end = own.units;
    return work;
  }

  /// What the share has of the stream from its unit `unit` on; `lane` has the sequence.
  TANDEM_DEVICE WorkTile take(int lane, int stream, int unit, const core::StreamSpan& span) {
    const int left = span.units - unit, mine = end_ - position_, unit_keys = args_.units.unit.value();
    const int count = args_.fixed_splits ? 1 : (left < mine ? left : mine);
    const auto [head, row_tile] = args_.row_tiles.divide(stream * team_blocks() + member_);
    const int length = tile::of_lane(own_.length, lane);
    WorkTile work{window_ + lane,
                  head,
                  row_tile,
                  length,
                  length + args_.units.new_len,
                  0,
                  0,
                  position_,
                  position_ + count,
                  position_ - unit,
                  position_ + left};
    const int first_key = (tile::of_lane(own_.first_unit, lane) + unit) * unit_keys;
    const int past_key = first_key + count * unit_keys;
    if constexpr (is_listed) work.listed = listed_from_lane(lane);
    work.begin = first_key;
    work.end = past_key < work.keys ? past_key : work.keys;
    position_ += count == left ? left + span.overhead : count;
    return work;
  }

  TANDEM_DEVICE core::ListedSequence listed_from_lane(int lane) const {
    const core::ListedSequence& own = own_listed_.sequence;
    return {tile::of_lane(own.keys, lane),        tile::of_lane(own.queries, lane),
            tile::of_lane(own.key_entry, lane),   tile::of_lane(own.first_key, lane),
            tile::of_lane(own.query_entry, lane), tile::of_lane(own.first_query, lane)};
  }

  /// As the device says it; without lengths all sequences fill the cache.
  TANDEM_DEVICE Lengths lengths_of(int sequence) const {
    if constexpr (is_listed) {
      if (is_packed()) {
        const core::ListedSequence own = packed_sequence(args_, sequence);
        return {own.keys, own.queries};
      }
      std::uint32_t words[4];
      read_listed(words, sequence, 0);
      return {static_cast<int>(words[0]), static_cast<int>(words[1]), static_cast<int>(words[3])};
    } else {
      return {args_.lengths == nullptr ? args_.units.capacity : hw::load_global(args_.lengths + sequence),
              args_.units.q_len};
    }
  }
  /// Of a list: how many sequences it has, none where it is another call's, and who shares them.
  TANDEM_DEVICE void read_header() {
    const int sequences = hw::load_global(args_.listed);
    own_listed_.blocks = hw::load_global(args_.listed + 1);
    const bool is_own = kind == Queries::sharing ||
                        static_cast<std::uint32_t>(hw::load_global(args_.listed + 2)) == args_.listed_key;
    own_listed_.batch = is_own ? sequences : 0;
  }
  /// Four words of a sequence's entry.
  TANDEM_DEVICE void read_listed(std::uint32_t (&words)[4], int sequence, int first_word) const {
    hw::load_global(words,
                    args_.listed + core::listed_header + core::listed_sequence_words * sequence + first_word);
  }
  TANDEM_DEVICE core::ListedSequence read_listed(int sequence) const {
    if (is_packed()) return packed_sequence(args_, sequence);
    std::uint32_t first[4], second[4];
    read_listed(first, sequence, 0);
    read_listed(second, sequence, 4);
    return {static_cast<int>(first[0]), static_cast<int>(first[1]),  static_cast<int>(first[2]),
            static_cast<int>(first[3]), static_cast<int>(second[0]), static_cast<int>(second[1])};
  }

  /// Moves the window on to the next 32 sequences.
  TANDEM_DEVICE void load_window() {
    window_ += hw::warp_size;
    const int lane = static_cast<int>(hw::lane_index()), sequence = window_ + lane;
    own_ = {0, 0, 0, 0};
    if constexpr (is_listed) {
      if (sequence < batch()) {
        own_listed_.sequence = read_listed(sequence);
        const core::ListedSequence& own = own_listed_.sequence;
        own_ = units_of({own.keys, own.queries, own.first_key});
      }
    } else {
      if (sequence < batch()) own_ = units_of(lengths_of(sequence));
    }
    hw::sync_warp();
    const int size =
        sequence < batch() ? core::StreamSpan{own_.units, overhead_}.size() * streams_per_block() : 0;
    const int sum = tile::warp_scan_sum(size);
    own_begin_ = window_end_ + sum - size;
    window_end_ += tile::of_lane(sum, hw::warp_size - 1);
  }

  /// All positions, and whether there is overhead among them.
  TANDEM_DEVICE int count_positions() {
    if (batch() > hw::warp_size) {
      const int units = count_units();
      choose_teams(units);
      return all_positions(units * streams_per_block(), batch() * streams_per_block());
    }
    load_window();
    choose_teams(window_end_);
    if (in_long_step())
      own_begin_ *= streams_per_block(), window_end_ *= streams_per_block();  // there was one stream in turn
    const int units = window_end_, streams = batch() * streams_per_block(),
              first = tile::of_lane(own_.units, 0);
    choose_overhead(hw::any_lane(own_.units != 0 && own_.units != first), first);
    own_begin_ += overhead_ * streams_per_block() *
                  static_cast<int>(hw::lane_index());  // as load_window would find it now
    window_end_ += overhead_ * streams;
    return all_positions(units, streams);
  }
  /// Of streams that are filled up the last one is, too.
  TANDEM_DEVICE int all_positions(int units, int streams) const {
    return core::positions(units, streams + (is_even_ ? 1 : 0), overhead_);
  }
  /// `units`: of the first stream.
  TANDEM_DEVICE void choose_overhead(bool differs, int units) {
    is_even_ = !differs;
    overhead_ = differs ? args_.overhead : 0;
    if (!differs && args_.shares_end_with_streams) {
      const int left = args_.even_share.divide(units).remainder;
      overhead_ = left == 0 ? 0 : args_.even_share.value() - left;
    }
  }

  /// Units of a stream of each sequence, and the overhead, for more sequences than a window has: without one,
  /// so that the lengths of several are on their way together.
  TANDEM_DEVICE int count_units() {
    constexpr int windows = 4;
    int first_units = 0, sum = 0;
    bool differs = false;
    for (int window = 0; window < batch(); window += windows * hw::warp_size) {
      const int first = window + static_cast<int>(hw::lane_index());
      Lengths lengths[windows];
      TANDEM_UNROLL
      for (int i = 0; i < windows; ++i) {  // lanes past the end take the last sequence again
        const int sequence = first + i * hw::warp_size;
        lengths[i] = lengths_of(sequence < batch() ? sequence : batch() - 1);
      }
      TANDEM_UNROLL
      for (int i = 0; i < windows; ++i) {
        const int units = units_of(lengths[i]).units;
        if (window == 0 && i == 0) first_units = tile::of_lane(units, 0);
        differs = differs || units != first_units;
        sum += first + i * hw::warp_size < batch() ? units : 0;
      }
    }
    choose_overhead(hw::any_lane(differs), first_units);
    return tile::warp_sum(sum);
  }

  /// Brings the window to the position. False: it is behind all sequences, where a plan of other lengths may
  /// lead.
  TANDEM_DEVICE bool seek() {
    while (position_ < end_ && position_ >= window_end_) {
      if (window_ + hw::warp_size >= batch()) return false;
      load_window();
    }
    return true;
  }

  /// The lane whose sequence the position is in.
  TANDEM_DEVICE int lane_of_position() const {
    return tile::warp_max(own_.units > 0 && own_begin_ <= position_ ? static_cast<int>(hw::lane_index()) : 0);
  }

  const DecodeArguments& args_;
  core::Shares shares_;
  int member_ = 0;
  int is_long_ = 0;
  int overhead_ = 0;      ///< of each stream, in positions
  bool is_even_ = false;  ///< whether all sequences have as many units
  int position_, end_;
  int window_, window_end_;  ///< sequence of lane 0; position after the last lane's
  core::SequenceUnits own_{};
  int own_begin_ = 0;  ///< position of the lane's sequence
  [[no_unique_address]] std::conditional_t<is_listed, OwnListed, NotListed> own_listed_{};
};

template <DecodeVariant V>
using SplitSchedulerOf = SplitScheduler<V.has_long_steps(), V.queries, V.knows_streams()>;

/// Query rows of a tile that exist.
template <auto V>
TANDEM_DEVICE int rows_of_tile(const DecodeArguments& args, const WorkTile& work) {
  const int rows = V.queries != Queries::uniform ? args.group.value() * work.listed.queries : args.rows;
  const int left = rows - work.row_tile * V.query_rows;
  return left < V.query_rows ? left : V.query_rows;
}

/// Where a query's row of q, o or lse begins.
template <auto V>
TANDEM_DEVICE std::int64_t row_of_query(const core::TensorView& view, const WorkTile& work, int token,
                                        int head) {
  if constexpr (V.queries != Queries::uniform) {
    return view.at(work.listed.query_entry, work.listed.first_query + token, head);
  } else {
    return view.at(work.sequence, token, head);
  }
}

}  // namespace tandem::decode
