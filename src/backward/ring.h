// The ring of sums of dQ: where the parts of the heads that are worked on lie, and whose turn it is to add.
//
// The tiles of keys that see a block of queries add their parts of its dQ in the order in which tiles are
// taken: earlier keys first. So the bits of dQ are always the same. The first one stores, which needs no
// zeros; the last one adds in registers and stores dQ. Then the part's place serves a later head. Each place
// has a counter of its visits, which a tile waits for. It only waits for tiles that were taken before it, so
// some tile can always go on, however many blocks are resident.
#pragma once

#include <cstdint>

#include "backward/sums.h"
#include "backward/work.h"
#include "hw/hw.h"

namespace tandem::backward {

/// The visit of a tile of keys to a part of dQ.
struct PartVisit {
  int part;  ///< its place in the ring
  bool is_first, is_last;
  std::uint32_t before;  ///< visits to the place that have to be over, those of earlier heads too
};

/// Rows and columns of dQ that a consumer's part has.
struct PartPlace {
  int head, first_query, first_column;
};

/// Which part of a step's block of queries a consumer computes: 64 of its queries, or 64 columns.
template <BackwardVariant V>
TANDEM_DEVICE PartPlace place_of_part(const Step& step, int consumer) {
  constexpr int row_blocks_a_block = V.block_m / part_rows;
  static_assert(row_blocks_a_block * parts_of_rows(V.head_dim) == V.consumers);
  return {step.head, step.block * V.block_m + consumer % row_blocks_a_block * part_rows,
          consumer / row_blocks_a_block * part_columns};
}

/// The tile's visit in a step. The tiles of keys that see the block's queries add to them.
template <BackwardVariant V>
TANDEM_DEVICE PartVisit visit_of(const BackwardArguments& args, const KeyWork& work, const PartPlace& place,
                                 const Step& step) {
  const Extent extent = extent_of<V>(args, work.sequence);
  const int first = step.block * V.block_m, past = first + V.block_m;
  const core::BlockRanges tiles = core::block_ranges(
      extent.mask, first, past < extent.q_len ? past : extent.q_len, extent.q_len, extent.k_len, V.block_n);
  const int group = args.group.value(), visitors = tiles.end - tiles.begin, rank = work.tile - tiles.begin;
  const auto [round, slot] = args.ring.heads.divide(work.batch * (extent.q_heads / group) + work.kv_head);
  const int first_row = V.is_varlen() ? work.sequence.first_row + place.first_query : place.first_query;
  const int part =
      part_number(slot * group + place.head - work.kv_head * group, extent.padded_q_len / part_rows,
                  first_row / part_rows, V.head_dim, place.first_column / part_columns);
  const auto [is_first, is_last] = work.part_of(step.number);
  return {part, is_first, is_last, static_cast<std::uint32_t>(round * visitors + rank)};
}

}  // namespace tandem::backward
