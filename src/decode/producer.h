// The producer warp: keeps the pipelines full. TMA does the copying; the lanes share out the boxes of a
// block, since with small pages there are many.
#pragma once

#include "decode/arguments.h"
#include "decode/pages.h"
#include "decode/shared_storage.h"
#include "decode/work.h"
#include "hw/hw.h"

namespace tandem::decode {

/// The pages of the boxes to come. A window of block_n boxes is one or more blocks; box g of it is in lane g
/// % 32, register g / 32.
template <DecodeVariant V>
class BoxPages {
 public:
  static constexpr int registers = V.block_n / hw::warp_size;

  TANDEM_DEVICE explicit BoxPages(const PageView& pages) : pages_(pages) {}

  /// Starts at the work tile's first key.
  TANDEM_DEVICE void begin(const WorkTile& work) {
    entry_ = V.lists_queries() ? work.listed.key_entry : entry_of(pages_, work.sequence);
    length_ = work.length < work.end ? work.length : work.end;
    window_key_ = work.begin;
    fetch(own_, window_key_);
    fetch(next_, window_key_ + window_keys());
  }

  /// Moves on to the block that begins at `key`; blocks are visited in order.
  TANDEM_DEVICE void advance(int key) {
    if (key < window_key_ + window_keys()) return;
    window_key_ += window_keys();
    TANDEM_UNROLL
    for (int i = 0; i < registers; ++i) own_[i] = next_[i];
    fetch(next_, window_key_ + window_keys());
  }

  /// Warp: the page of box 32 * round + lane of the block at `key`, which `advance` has moved to; -1 for
  /// boxes past the cache's keys.
  TANDEM_DEVICE int page(int key, int round) const {
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
      int page = key < length_ ? entry_ : -1;
      if (pages_.table != nullptr && key < length_) page = hw::load_global(row + (key >> pages_.page_shift));
      pages[i] = static_cast<std::uint32_t>(page);
    }
    hw::sync_warp();
  }

  const PageView& pages_;
  int entry_, length_, window_key_;
  std::uint32_t own_[registers], next_[registers];
};

/// narrow: rows may have fewer columns than tiles, and boxes bring those that rows have.
template <DecodeVariant V, bool narrow>
struct Producer {
  using KeyBlock = typename DecodeShared<V>::KeyBlock;
  using Position = tile::PipelineState<V.stages>;

  const DecodeArguments& args;
  DecodeShared<V>& shared;
  BoxPages<V> pages;
  Position k_at, v_at;
  int first_row;  ///< of the entry that has the work's keys, where queries are listed

  TANDEM_DEVICE static std::uint32_t block_bytes(const hw::Panels& panels) {
    return sizeof(KeyBlock) / DecodeShared<V>::KeyTile::bytes *
           tile::box_bytes<typename DecodeShared<V>::KeyTile>(panels);
  }

  TANDEM_DEVICE hw::Panels keys() const {
    return {args.k, args.k_last, narrow ? args.key_box_columns : hw::Panels::all_columns};
  }
  TANDEM_DEVICE hw::Panels values() const {
    return {args.v, args.v_last, narrow ? args.value_box_columns : hw::Panels::all_columns};
  }

  /// Starts loading the block of keys or values at `key`, as soon as its stage is empty.
  TANDEM_DEVICE void load(tile::Pipeline<V.stages>& pipeline, Position& at, const hw::Panels& panels,
                          KeyBlock (&blocks)[V.stages], hw::BoxOrigin origin) {
    hw::barrier_wait(pipeline.empty[at.stage], at.parity ^ 1u);
    hw::sync_warp();
    if (hw::lane_index() == 0) hw::barrier_arrive_expecting(pipeline.full[at.stage], block_bytes(panels));
    hw::sync_warp();
    const int boxes = V.block_n >> args.pages.box_shift, first_key = origin.s;
    const std::uint32_t key_in_page = (1u << args.pages.page_shift) - 1;
    for (int round = 0; round * hw::warp_size < boxes; ++round) {
      const int box = round * hw::warp_size + static_cast<int>(hw::lane_index());
      const int row = box << args.pages.box_shift;
      origin.b = pages.page(first_key, round);
      origin.s = static_cast<int>(static_cast<std::uint32_t>(first_key + row) & key_in_page);
      if constexpr (V.queries == Queries::listed) origin.s += first_row;
      if (box < boxes) load_rows(blocks[at.stage], row, panels, pipeline.full[at.stage], origin);
      hw::sync_warp();
    }
    at.advance();
  }

  /// Starts loading a first block, whose stage nobody has had, of a contiguous cache: from key 0 on, existing
  /// or not.
  TANDEM_DEVICE void load_first(tile::Pipeline<V.stages>& pipeline, Position& at, const hw::Panels& panels,
                                KeyBlock (&blocks)[V.stages], hw::BoxOrigin origin) {
    constexpr int box_rows = 64;
    if (hw::lane_index() == 0) {
      hw::barrier_arrive_expecting(pipeline.full[0], block_bytes(panels));
      TANDEM_UNROLL
      for (origin.s = 0; origin.s < V.block_n; origin.s += box_rows)
        load_rows(blocks[0], origin.s, panels, pipeline.full[0], origin);
    }
    hw::sync_warp();
    at.advance();
  }

  TANDEM_DEVICE void load_rows(KeyBlock& block, int row, const hw::Panels& panels, hw::Barrier& full,
                               hw::BoxOrigin origin) {
    constexpr int tile_keys = DecodeShared<V>::tile_keys;
    auto& tile = block.tile[row / tile_keys];
    TANDEM_UNROLL
    for (int p = 0; p < DecodeShared<V>::KeyTile::panels; ++p) {
      constexpr int value_panels = V.value_dim / tile::panel_columns;
      const bool is_value = V.two_part_keys && p < value_panels;
      origin.d = (V.two_part_keys && !is_value ? p - value_panels : p) * tile::panel_columns;
      const hw::Panels own = is_value ? values() : panels;
      void* to = tile.panel[p][row % tile_keys];
      // Two calls, or ptxas would keep the address of a map that it chose in registers.
      if (own.has_whole(origin.d)) {
        hw::load_box(to, own.whole, full, origin, args.policy);
      } else if (own.has(origin.d)) {
        hw::load_box(to, own.last, full, origin, args.policy);
      }
    }
  }
};

/// Starts loading the block of keys and values at `key`.
template <DecodeVariant V, bool narrow>
TANDEM_DEVICE void load_block(Producer<V, narrow>& producer, const WorkTile& work, int key) {
  producer.pages.advance(key);
  const hw::BoxOrigin origin{0, key, work.head, 0};
  if constexpr (V.paired()) producer.v_at = producer.k_at;  // or it would take registers of its own
  producer.load(producer.shared.k_pipeline, producer.k_at, producer.keys(), producer.shared.k, origin);
  if constexpr (!V.values_in_keys())
    producer.load(producer.shared.v_pipeline, producer.v_at, producer.values(), producer.shared.v.block,
                  origin);
}

/// All blocks of the work from that at `key` on.
template <DecodeVariant V, bool narrow>
TANDEM_DEVICE void load_blocks(Producer<V, narrow>& producer, const WorkTile& work, int key) {
  if (key < work.end) producer.pages.begin(work);
  if constexpr (V.queries == Queries::listed) producer.first_row = work.listed.first_key;
  for (; key < work.end; key += V.block_n) load_block(producer, work, key);
}

/// Nobody visits the first block: it has to have come before the warp ends.
template <DecodeVariant V>
TANDEM_DEVICE void await_first_block(DecodeShared<V>& shared) {
  hw::barrier_wait(shared.k_pipeline.full[0], 0);
  if constexpr (!V.values_in_keys()) hw::barrier_wait(shared.v_pipeline.full[0], 0);
}

/// The first part of a stream that the block knows: its first keys are on their way before its length has
/// come.
template <DecodeVariant V, bool narrow>
TANDEM_DEVICE void produce_known_stream(Producer<V, narrow>& producer, SplitSchedulerOf<V>& scheduler) {
  DecodeShared<V>& shared = producer.shared;
  const WorkTile known = scheduler.known_stream();
  const hw::BoxOrigin origin{0, 0, known.head, entry_of(producer.args.pages, known.sequence)};
  producer.load_first(shared.k_pipeline, producer.k_at, producer.keys(), shared.k, origin);
  if constexpr (!V.values_in_keys())
    producer.load_first(shared.v_pipeline, producer.v_at, producer.values(), shared.v.block, origin);
  const WorkTile work = scheduler.first();
  if (work.begin == work.end) return await_first_block(shared);
  load_blocks(producer, work, V.block_n);
}

/// Feeds the pipelines with all keys and values of the block's share.
template <DecodeVariant V, bool narrow>
TANDEM_DEVICE void produce_share(const DecodeArguments& args, DecodeShared<V>& shared,
                                 SplitSchedulerOf<V>& scheduler) {
  Producer<V, narrow> producer{args, shared, BoxPages<V>(args.pages), {}, {}, 0};
  if (scheduler.knows_stream() && args.starts_at_key_0 && scheduler.known_stream().begins_stream())
    return produce_known_stream(producer, scheduler);
  for (WorkTile work = scheduler.first(); work.exists(); work = scheduler.next())
    load_blocks(producer, work, work.begin);
}

/// Two ways, since short steps wait for every instruction that comes for the first time. Some kernels have no
/// registers for both.
template <DecodeVariant V>
TANDEM_DEVICE void produce(const DecodeArguments& args, DecodeShared<V>& shared,
                           SplitSchedulerOf<V>& scheduler) {
  if constexpr (!V.boxes_end_with_rows()) {
    produce_share<V, false>(args, shared, scheduler);
  } else if constexpr (V.resident > 1 || V.lists_queries()) {
    produce_share<V, true>(args, shared, scheduler);
  } else if (args.narrow_rows) {
    produce_share<V, true>(args, shared, scheduler);
  } else {
    produce_share<V, false>(args, shared, scheduler);
  }
}

}  // namespace tandem::decode
