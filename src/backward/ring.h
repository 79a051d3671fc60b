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
  int turn;              ///< the counter that it waits for,
  std::uint32_t before;  ///< and up to which number
  int finished;          ///< the counter of the visit, or `nobodys`

  static constexpr int nobodys = -1;
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

/// Which one of a part's visits it is.
struct PartRank {
  int number;
  bool is_first, is_last;
};

/// Where lengths vary, how many visits the heads before had is not known. So each part has two counters: of
/// its visits, and of its last one, which frees its place for the part that has the place next.
template <BackwardVariant V>
TANDEM_DEVICE PartVisit listed_visit(const BackwardArguments& args, const KeyWork& work,
                                     const PartPlace& place, const PartRank& rank) {
  const Sequence& s = work.sequence;
  const int number =
      s.first_part + part_number(place.head, row_blocks_of<V>(s.q_len), place.first_query / part_rows,
                                 V.head_dim, place.first_column / part_columns);
  const int freed = args.ring.parts + number - args.ring.places.value();
  const bool is_reused = number >= args.ring.places.value();
  return {args.ring.places.divide(number).remainder,
          rank.is_first,
          rank.is_last,
          rank.is_first ? freed : number,
          static_cast<std::uint32_t>(rank.is_first ? is_reused : rank.number),
          rank.is_last ? args.ring.parts + number : number};
}

/// The tile's visit in a step. The tiles of keys that see the block's queries add to them, each after those
/// before it in order. A place has the visits of one head after another, all the same ones.
template <BackwardVariant V>
TANDEM_DEVICE PartVisit visit_of(const BackwardArguments& args, const KeyWork& work, const PartPlace& place,
                                 const Step& step) {
  const Extent extent = extent_of<V>(args, work.sequence);
  const int first = step.block * V.block_m, past = first + V.block_m;
  const core::BlockRanges tiles = core::block_ranges(
      extent.mask, first, past < extent.q_len ? past : extent.q_len, extent.q_len, extent.k_len, V.block_n);
  const int rank = work.tile - tiles.begin;
  const auto [is_first, is_last] = work.part_of(step.number);
  if constexpr (V.is_varlen()) return listed_visit<V>(args, work, place, {rank, is_first, is_last});
  const int group = args.group.value(), visitors = tiles.end - tiles.begin;
  const auto [round, slot] = args.ring.heads.divide(work.batch * (extent.q_heads / group) + work.kv_head);
  const int part =
      part_number(slot * group + place.head - work.kv_head * group, extent.padded_q_len / part_rows,
                  place.first_query / part_rows, V.head_dim, place.first_column / part_columns);
  return {part,
          is_first,
          is_last,
          part,
          static_cast<std::uint32_t>(round * visitors + rank),
          is_first && is_last ? PartVisit::nobodys : part};
}

}  // namespace tandem::backward
