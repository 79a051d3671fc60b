// The tile scheduler of variable lengths: a list of all tiles, longest first, made on the device.
//
// How many tiles there are, and how long each is, is known on the device only. A small kernel ahead of the
// forward finds the rank of every tile among all others by length, and writes the tile there. The grid deals
// the list out as it does causal tiles: there and back.
#pragma once

#include "core/schedule.h"
#include "forward/arguments.h"
#include "forward/sequence.h"

namespace tandem::forward {

/// The tiles of one sequence and head, and how far into the keys each of them reaches.
struct SequenceTiles {
  int q_len, k_len;
  int tile_queries;  ///< of a tile
  int count;
  int shift;  ///< a tile whose last query is q sees keys up to q + shift
  int most;   ///< keys that a tile sees where there is a window

  TANDEM_DEVICE static SequenceTiles of(const ForwardArguments& args, int index, int tile_queries) {
    const Sequence s = read_sequence(args.varlen, index);
    const core::BasicMask<std::int32_t> mask = args.mask;
    return {s.q_len,
            s.k_len,
            tile_queries,
            (s.q_len + tile_queries - 1) / tile_queries,
            s.k_len - s.mask_q_len + mask.right + 1,
            mask.left + mask.right + tile_queries};
  }
  /// Of a tile: what it reads, as good as. Rises with the tile's number.
  TANDEM_DEVICE int length(int m_block) const {
    const int past = (m_block + 1) * tile_queries, last = (past < q_len ? past : q_len) - 1;
    return core::clamp(core::clamp(last + shift, 0, k_len), 0, most);
  }
  /// How many tiles are longer than `length`, which is not negative.
  TANDEM_DEVICE int longer_than(int length) const {
    if (length >= k_len || length >= most || q_len - 1 + shift <= length) return 0;
    // The first tile whose last query sees more: (m_block + 1) * tile_queries - 1 + shift > length.
    const int missing = length + 1 - shift;
    return count - (missing <= 0 ? 0 : missing / tile_queries);
  }
  TANDEM_DEVICE int at_least(int length) const { return length == 0 ? count : longer_than(length - 1); }
};

/// The body of the kernel that makes the list. One thread a tile, of as many as there may be.
TANDEM_DEVICE void list_tiles(const ForwardArguments& args, int tile_queries) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const VarlenArguments& varlen = args.varlen;
  const int own =
      static_cast<int>(hw::block_index()) * ListVariant::threads() + static_cast<int>(hw::thread_index());
  int total = 0, sequence = -1, m_block = 0;
  for (int i = 0; i < varlen.sequences; ++i) {
    const int count = SequenceTiles::of(args, i, tile_queries).count;
    if (own >= total && own < total + count) sequence = i, m_block = own - total;
    total += count;
  }
  if (own == 0)
    hw::store_global(reinterpret_cast<std::uint32_t*>(varlen.tile_list), static_cast<std::uint32_t>(total));
  if (sequence < 0) return;

  // Longest first; of equal ones the earlier sequence's, and of one sequence the later queries'.
  const SequenceTiles mine = SequenceTiles::of(args, sequence, tile_queries);
  const int length = mine.length(m_block);
  int rank = mine.count - 1 - m_block;
  for (int i = 0; i < varlen.sequences; ++i) {
    if (i == sequence) continue;
    const SequenceTiles other = SequenceTiles::of(args, i, tile_queries);
    rank += i < sequence ? other.at_least(length) : other.longer_than(length);
  }
  auto* entry = reinterpret_cast<std::uint32_t*>(varlen.tile_list) + tile_list_header + 2 * rank;
  hw::store_global(entry, static_cast<std::uint32_t>(sequence));
  hw::store_global(entry + 1, static_cast<std::uint32_t>(m_block));
}

/// Where the order of tiles ends.
template <ForwardVariant V>
TANDEM_DEVICE int positions(const ForwardArguments& args) {
  if constexpr (V.lengths == Lengths::varlen) {
    return hw::load_global(args.varlen.tile_list) * args.varlen.packs.value();
  } else {
    return args.schedule.positions();
  }
}

/// The tile at a position of the order; past its end, any. `batch` is the sequence.
template <ForwardVariant V>
TANDEM_DEVICE core::Tile tile_at(const ForwardArguments& args, int position) {
  if constexpr (V.lengths == Lengths::varlen) {
    const auto [rank, pack] = args.varlen.packs.divide(position);
    const int last = hw::load_global(args.varlen.tile_list) - 1;
    if (rank > last) return {core::Tile::none, 0, 0};
    const std::int32_t* entry = args.varlen.tile_list + tile_list_header + 2 * rank;
    return {hw::load_global(entry + 1), pack, hw::load_global(entry)};
  } else {
    return args.schedule.tile(position);
  }
}

}  // namespace tandem::forward
