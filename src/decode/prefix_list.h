// The list of a step whose sequences share prefixes (core/listed_queries.h), written ahead of it: of each
// group's prefix entries that have queries of several sequences as their rows, and then of each sequence what
// it has of its own.
//
// What is shared is whole units of the step's keys: the rest of a prefix each sequence reads with its own.
// It is no more than all queries of the group see and all its sequences have.
//
// Source: Ye et al., "FlashInfer", 2025, section 3.1.2, for prefixes as rows of several sequences' queries.
#pragma once

#include <limits>

#include "core/listed_queries.h"
#include "core/shared_prefixes.h"
#include "core/varlen.h"
#include "decode/arguments.h"
#include "decode/variant.h"
#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::decode {

/// Sequences that share a prefix, as the warps note it for one another.
struct PrefixGroup {
  int begin, end;   ///< sequences
  int shared;       ///< keys
  int first_entry;  ///< place of its prefix' first
};

class PrefixList {
 public:
  TANDEM_DEVICE explicit PrefixList(const PrefixListArguments& args) : args_(args) {}

  /// Warp: notes the groups' sequences. Whatever the numbers are, no sequence is in two groups.
  TANDEM_DEVICE void note_sequences() const {
    int past = 0;  // of the groups before
    for (int first = 0; first < args_.groups; first += hw::warp_size) {
      const int group = first + lane();
      const bool exists = group < args_.groups;
      int begin = exists ? sequence_at(group) : 0, end = exists ? sequence_at(group + 1) : 0;
      end = tile::warp_scan_max(end);
      end = end > past ? end : past;
      const int before = tile::of_lane(end, lane() == 0 ? 0 : lane() - 1);
      const int least = lane() == 0 ? past : before;
      begin = core::clamp(begin, least, end);
      if (exists) note(group, 0, begin), note(group, 1, end);
      past = tile::of_lane(end, hw::warp_size - 1);
    }
  }

  /// Warp: notes how many keys the group shares; a sequence alone shares none.
  TANDEM_DEVICE void note_shared(int group) const {
    const int begin = noted(group, 0), end = noted(group, 1);
    int least = end - begin > 1 ? hw::load_global(args_.prefix_lengths + group) : 0;
    for (int i = begin + lane(); i < end; i += hw::warp_size) {
      const int own = sharable_of(i);
      least = own < least ? own : least;
    }
    least = tile::warp_min(least);
    const int units = args_.units.unit.divide(least < 0 ? 0 : least).quotient;
    if (lane() == 0) note(group, 2, units * args_.units.unit.value());
  }

  /// Warp: notes where the groups' entries are to be, and writes the list's header.
  TANDEM_DEVICE void note_places() const {
    int past = 0;
    for (int first = 0; first < args_.groups; first += hw::warp_size) {
      const int group = first + lane();
      const int own = group < args_.groups ? entries_of(read(group)) : 0;
      const int sum = tile::warp_scan_sum(own);
      if (group < args_.groups) note(group, 3, past + sum - own);
      past += tile::of_lane(sum, hw::warp_size - 1);
    }
    if (lane() != 0) return;
    note(args_.groups, 0, past);
    store(args_.list, past + args_.batch), store(args_.list + 1, args_.step_blocks);
  }

  /// Warp: lists the group's prefix, and what its sequences have of their own, and those between it and the
  /// group before. Behind the last group come those that are in none.
  TANDEM_DEVICE void list(int group) const {
    const bool exists = group < args_.groups;
    const PrefixGroup own = exists ? read(group) : PrefixGroup{args_.batch, args_.batch, 0, 0};
    const int first = group == 0 ? 0 : noted(group - 1, 1), prefix_entries = noted(args_.groups, 0);
    for (int i = lane(); i < entries_of(own); i += hw::warp_size) {
      const int before = i * args_.tile_queries, left = (own.end - own.begin) * args_.units.q_len - before;
      write(own.first_entry + i,
            {own.shared, left < args_.tile_queries ? left : args_.tile_queries, entry_of_sequence(own.begin),
             core::shared_prefix, static_cast<int>(core::ResultPart::prefix),
             own.begin * args_.units.q_len + before});
    }
    for (int i = first + lane(); i < own.end; i += hw::warp_size)
      write(prefix_entries + i,
            {units_of(i).keys, args_.units.q_len, entry_of_sequence(i), i < own.begin ? 0 : own.shared,
             static_cast<int>(core::ResultPart::own), i * args_.units.q_len});
  }

  /// Number `index` of `count`: until a prefix says something else, no query has seen a key of one.
  TANDEM_DEVICE void clear_lse(int index, int count) const {
    for (int row = index; row < args_.rows; row += count)
      hw::store_global(args_.prefix_lse + row, -std::numeric_limits<float>::infinity());
  }

 private:
  TANDEM_DEVICE static int lane() { return static_cast<int>(hw::lane_index()); }
  TANDEM_DEVICE static void store(std::int32_t* to, int value) {
    hw::store_global(reinterpret_cast<std::uint32_t*>(to), static_cast<std::uint32_t>(value));
  }
  TANDEM_DEVICE void note(int group, int word, int value) const {
    store(args_.notes + prefix_group_words * group + word, value);
  }
  TANDEM_DEVICE int noted(int group, int word) const {
    return hw::load_global(args_.notes + prefix_group_words * group + word);
  }
  TANDEM_DEVICE PrefixGroup read(int group) const {
    return {noted(group, 0), noted(group, 1), noted(group, 2), noted(group, 3)};
  }

  TANDEM_DEVICE int sequence_at(int boundary) const {
    return core::clamp(hw::load_global(args_.cu_sequences + boundary), 0, args_.batch);
  }
  TANDEM_DEVICE int entry_of_sequence(int sequence) const {
    return args_.batch_index == nullptr ? sequence : hw::load_global(args_.batch_index + sequence);
  }
  TANDEM_DEVICE core::SequenceUnits units_of(int sequence) const {
    return args_.units.of(args_.lengths == nullptr ? args_.units.capacity
                                                   : hw::load_global(args_.lengths + sequence));
  }
  /// Keys that the sequence had before the step, and that its first query sees.
  TANDEM_DEVICE int sharable_of(int sequence) const {
    const core::SequenceUnits own = units_of(sequence);
    const int seen = args_.units.mask.visible_keys(0, args_.units.q_len, own.keys).end;
    return seen < own.length ? seen : own.length;
  }
  TANDEM_DEVICE int entries_of(const PrefixGroup& group) const {
    const int queries = (group.end - group.begin) * args_.units.q_len;
    return group.shared == 0 ? 0 : (queries + args_.tile_queries - 1) / args_.tile_queries;
  }
  TANDEM_DEVICE void write(int place, const core::ListedSequence& s) const {
    std::int32_t* to = args_.list + core::listed_header + core::listed_sequence_words * place;
    const auto word = [](int x) { return static_cast<std::uint32_t>(x); };
    hw::store_global(static_cast<void*>(to),
                     {word(s.keys), word(s.queries), word(s.key_entry), word(s.first_key)});
    hw::store_global(static_cast<void*>(to + 4), {word(s.query_entry), word(s.first_query), 0u, 0u});
  }

  const PrefixListArguments& args_;
};

/// The first block lists, the others clear.
TANDEM_DEVICE void prefix_list_kernel(const PrefixListArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  constexpr int threads = PrefixListVariant::threads(), warps = PrefixListVariant::warps();
  const PrefixList list(args);
  const int block = static_cast<int>(hw::block_index()), warp = static_cast<int>(hw::warp_index());
  if (block > 0) {
    const int clearing = static_cast<int>(hw::grid_size()) - 1;
    return list.clear_lse((block - 1) * threads + static_cast<int>(hw::thread_index()), clearing * threads);
  }
  if (warp == 0) list.note_sequences();
  hw::sync_block();
  for (int group = warp; group < args.groups; group += warps) list.note_shared(group);
  hw::sync_block();
  if (warp == 0) list.note_places();
  hw::sync_block();
  for (int group = warp; group <= args.groups; group += warps) list.list(group);
}

}  // namespace tandem::decode
