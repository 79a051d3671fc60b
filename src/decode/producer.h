// The producer warp: keeps the pipelines full. TMA does the copying; the lanes share out the boxes of a
// block, since with small pages there are many.
#pragma once

#include <limits>

#include "decode/arguments.h"
#include "decode/pages.h"
#include "decode/shared_storage.h"
#include "decode/work.h"
#include "hw/hw.h"

namespace tandem::decode {

/// An entry of a contiguous cache, and the end of its keys.
struct CacheEntry {
  int number, end;

  /// -1 for boxes past the keys.
  TANDEM_DEVICE int at(int key) const { return key < end ? number : -1; }
};

/// Where the boxes to come lie: the entry of a contiguous cache, or their pages. A window of block_n boxes is
/// one or more blocks; box g of it is in lane g % 32, register g / 32.
template <DecodeVariant V>
class BoxPages {
 public:
  static constexpr int registers = V.block_n / hw::warp_size;

  TANDEM_DEVICE explicit BoxPages(const PageView& pages) : pages_(pages) {}

  /// Starts at the work tile's first key.
  TANDEM_DEVICE void begin(const WorkTile& work) {
    entry_ = V.lists_queries() ? work.listed.key_entry : entry_of(pages_, work.sequence);
    length_ = work.length < work.end ? work.length : work.end;
    if (pages_.table == nullptr) return;
    window_key_ = work.begin;
    fetch(own_, window_key_);
    fetch(next_, window_key_ + window_keys());
  }

  /// Of a contiguous cache: where the work's keys lie.
  TANDEM_DEVICE CacheEntry entry() const { return {entry_, length_}; }

  /// Moves on to the block that begins at `key`; blocks are visited in order.
  TANDEM_DEVICE void advance(int key) {
    if (pages_.table == nullptr || key < window_key_ + window_keys()) return;
    window_key_ += window_keys();
    TANDEM_UNROLL
    for (int i = 0; i < registers; ++i) own_[i] = next_[i];
    fetch(next_, window_key_ + window_keys());
  }

  /// Warp: the page of box 32 * round + lane of the block at `key`, which `advance` has moved to; -1 for
  /// boxes past the work's keys.
  TANDEM_DEVICE int page(int key, int round) const {
    const int own_box = round * hw::warp_size + static_cast<int>(hw::lane_index());
    if (pages_.table == nullptr) return entry().at(key + (own_box << pages_.box_shift));
    const int box = ((key - window_key_) >> pages_.box_shift) + round * hw::warp_size;
    std::uint32_t value = own_[0];
    TANDEM_UNROLL
    for (int i = 1; i < registers; ++i) {
      const std::uint32_t candidate = own_[i];  // read in any case, or the registers become memory
      value = box / hw::warp_size == i ? candidate : value;
    }
    return static_cast<int>(hw::shuffle(value, (static_cast<std::uint32_t>(box) + hw::lane_index()) % 32));
  }

 private:
  TANDEM_DEVICE int window_keys() const { return V.block_n << pages_.box_shift; }

  TANDEM_DEVICE void fetch(std::uint32_t (&pages)[registers], int window_key) const {
    const std::int32_t* row = pages_.table + entry_ * pages_.table_stride;
    TANDEM_UNROLL
    for (int i = 0; i < registers; ++i) {
      const int box = i * hw::warp_size + static_cast<int>(hw::lane_index());
      const int key = window_key + (box << pages_.box_shift);
      int page = -1;
      if (key < length_) page = hw::load_global(row + (key >> pages_.page_shift));
      pages[i] = static_cast<std::uint32_t>(page);
    }
    hw::sync_warp();
  }

  const PageView& pages_;
  int entry_ = 0, length_ = 0, window_key_ = 0;
  std::uint32_t own_[registers]{}, next_[registers]{};
};

/// Keys, and values that have a place of their own, a block of each in turn. Its code is short, since it is
/// the first that a step needs and may come from memory: one loop over all work, and copies of boxes only,
/// for which blocks would wait (docs/performance/decode.md).
template <DecodeVariant V>
struct Producer {
  using KeyBlock = typename DecodeShared<V>::KeyBlock;
  using KeyTile = typename DecodeShared<V>::KeyTile;
  static constexpr int tile_keys = DecodeShared<V>::tile_keys;
  static constexpr int rings = V.values_in_keys() ? 1 : 2;
  /// Of a contiguous cache. Lanes that agree for each block take as long as 26 KB take to come, which shows
  /// where two warpgroups share blocks out, and little where products are short. Others take up to 4 % longer
  /// by one thread, and the cause was not found (docs/performance/decode.md, One thread for a block).
  static constexpr bool loads_by_one_thread = V.splits_keys() || (V.query_rows <= 8 && !V.eight_bit());

  const DecodeArguments& args;
  DecodeShared<V>& shared;
  BoxPages<V> pages;
  hw::L2Policy policy;
  tile::PipelineState<V.stages> at = {};  ///< of both rings
  int first_row = 0;                      ///< of the entry that has the work's keys, where queries are listed

  TANDEM_DEVICE Producer(const DecodeArguments& arguments, DecodeShared<V>& memory)
      : args(arguments), shared(memory), pages(arguments.pages), policy(hw::l2_policy(arguments.policy)) {}

  /// Of the stage where the producer is: where its block and its barriers lie, and what boxes bring.
  struct Place {
    KeyBlock& block;
    hw::Barrier &empty, &full;
    hw::Panels panels;
  };
  TANDEM_DEVICE Place place(int ring) const {
    const bool is_value = rings > 1 && ring != 0;
    auto& pipeline = is_value ? shared.v_pipeline : shared.k_pipeline;
    return {is_value ? shared.values(at.stage) : shared.k[at.stage], pipeline.empty[at.stage],
            pipeline.full[at.stage], is_value ? args.v_panels() : args.k_panels()};
  }

  TANDEM_DEVICE static void announce(const Place& place) {
    hw::barrier_arrive_expecting(place.full, V.block_n / tile_keys * tile::box_bytes<KeyTile>(place.panels));
  }

  /// Starts loading the block of keys and values at `key`, each as soon as its stage is empty.
  TANDEM_DEVICE void load_block(const WorkTile& work, int key) {
    if constexpr (loads_by_one_thread) {
      if (args.pages.table == nullptr) {
        load_contiguous(work, key, pages.entry());
        return;
      }
    }
    load_boxes(work, key);
  }

  /// The same of a first block, whose stage nobody has had, of a contiguous cache: from key 0 on, existing or
  /// not.
  TANDEM_DEVICE void load_first_block(const WorkTile& work) {
    load_contiguous(work, 0, {entry_of(args.pages, work.sequence), std::numeric_limits<int>::max()});
  }

  TANDEM_DEVICE void load_contiguous(const WorkTile& work, int key, const CacheEntry& entry) {
    if (hw::elect_one()) {
      TANDEM_UNROLL
      for (int ring = 0; ring < rings; ++ring) {
        const Place to = place(ring);
        hw::barrier_wait(to.empty, at.parity ^ 1u);
        announce(to);
        TANDEM_DONT_UNROLL
        for (int row = 0; row < V.block_n; row += most_box_rows)
          load_rows(to, row, {0, first_row + key + row, work.head, entry.at(key + row)});
      }
    }
    hw::sync_warp();
    at.advance();
  }

  /// The lanes share out the boxes.
  TANDEM_DEVICE void load_boxes(const WorkTile& work, int key) {
    pages.advance(key);
    const int boxes = V.block_n >> args.pages.box_shift;
    const std::uint32_t key_in_page = (1u << args.pages.page_shift) - 1;
    TANDEM_UNROLL
    for (int ring = 0; ring < rings; ++ring) {
      const Place to = place(ring);
      hw::barrier_wait(to.empty, at.parity ^ 1u);
      hw::sync_warp();
      if (hw::lane_index() == 0) announce(to);
      hw::sync_warp();
      TANDEM_DONT_UNROLL
      for (int round = 0; round * hw::warp_size < boxes; ++round) {
        const int box = round * hw::warp_size + static_cast<int>(hw::lane_index());
        const int row = box << args.pages.box_shift;
        hw::BoxOrigin origin{0, key + row, work.head, pages.page(key, round)};
        origin.s = static_cast<int>(static_cast<std::uint32_t>(origin.s) & key_in_page);
        if constexpr (V.queries == Queries::listed) origin.s += first_row;
        if (box < boxes) load_rows(to, row, origin);
        hw::sync_warp();
      }
    }
    at.advance();
  }

  TANDEM_DEVICE void load_rows(const Place& to, int row, const hw::BoxOrigin& origin) {
    if constexpr (V.values_in_keys()) {  // nine panels: unrolled, they would have no registers
      TANDEM_DONT_UNROLL
      for (int p = 0; p < KeyTile::panels; ++p) load_panel(to, row, p, origin);
    } else {
      TANDEM_UNROLL
      for (int p = 0; p < KeyTile::panels; ++p) load_panel(to, row, p, origin);
    }
  }

  TANDEM_DEVICE void load_panel(const Place& to, int row, int p, hw::BoxOrigin origin) {
    constexpr int value_panels = V.value_dim / tile::panel_columns;
    const bool is_value = V.two_part_keys && p < value_panels;
    origin.d = (V.two_part_keys && !is_value ? p - value_panels : p) * tile::panel_columns;
    const hw::Panels own = is_value ? args.v_panels() : to.panels;
    if (!own.has(origin.d)) return;
    const hw::TensorMap& map = own.has_whole(origin.d) ? own.whole : own.last;
    void* place = to.block.tile[row / tile_keys].panel[p][row % tile_keys];
    hw::load_box(place, map, to.full, origin, policy);
  }
};

/// Nobody visits the first block: it has to have come before the warp ends.
template <DecodeVariant V>
TANDEM_DEVICE void await_first_block(DecodeShared<V>& shared) {
  hw::barrier_wait(shared.k_pipeline.full[0], 0);
  if constexpr (!V.values_in_keys()) hw::barrier_wait(shared.v_pipeline.full[0], 0);
}

/// Feeds the pipelines with all keys and values of the block's share. Where it has the first part of a stream
/// that it knows, the first keys are on their way before their length has come.
template <DecodeVariant V>
TANDEM_DEVICE void produce(const DecodeArguments& args, DecodeShared<V>& shared,
                           SplitSchedulerOf<V>& scheduler) {
  Producer<V> producer(args, shared);
  bool has_first_block =
      scheduler.knows_stream() && args.starts_at_key_0 && scheduler.known_stream().begins_stream();
  if (has_first_block) producer.load_first_block(scheduler.known_stream());
  TANDEM_DONT_UNROLL
  for (;;) {
    const WorkTile work = scheduler.next();
    if (!work.exists()) break;
    if (work.begin == work.end) continue;
    producer.pages.begin(work);
    if constexpr (V.queries == Queries::listed) producer.first_row = work.listed.first_key;
    int key = work.begin + (has_first_block ? V.block_n : 0);
    has_first_block = false;
    for (; key < work.end; key += V.block_n) producer.load_block(work, key);
  }
  if (has_first_block) await_first_block(shared);
}

}  // namespace tandem::decode
