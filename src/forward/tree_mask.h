// Trees of drafts: a word for each of a sequence's queries says which of its last keys they see.
#pragma once

#include <type_traits>

#include "core/tree.h"
#include "forward/arguments.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Of the tile at work. Words are read where they are needed, in the blocks of a sequence's last keys only,
/// so that no register keeps them.
template <ForwardVariant V>
struct TreeMask {
  core::Tile tile;

  TANDEM_DEVICE void begin(const Work& work) { tile = work.tile; }

  /// Sets the scores of keys that a row's word hides to -inf. `own_row`: of the tile, the thread's upper one.
  /// No branch but for calls without trees, which lanes take together.
  TANDEM_DEVICE void hide(const ForwardArguments& args, float (&scores)[V.block_n / 2], int own_row,
                          int first_key) const {
    if (args.tree == nullptr) return;
    const MaskLengths lengths = lengths_of<V>(args, tile);
    const TileQueries queries = queries_of<V>(tile);
    const int first_row = listed_tile<V>(tile).m_block * V.block_m + own_row;
    const std::int64_t first_word = std::int64_t{queries.q_batch} * args.varlen.q_rows + queries.q_begin;
    std::uint32_t low[2], high[2];
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int query = args.packing.query(first_row + 8 * i), last = lengths.q_len - 1;
      const std::uint32_t* word = args.tree + 2 * (first_word + (query < last ? query : last));
      low[i] = hw::load_global(word), high[i] = hw::load_global(word + 1);
      // No word hides nothing, nor do those of sequences that are no trees.
      if ((low[i] | high[i]) == 0 || lengths.q_len > core::most_tree_queries) low[i] = high[i] = ~0u;
    }
    const int own_bit =
        first_key + 2 * static_cast<int>(hw::lane_index() % 4) - lengths.k_len + lengths.mask_q_len;
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j) {
      const int i = tile::row_of_accumulator(j), bit = own_bit + tile::column_of_accumulator(j);
      const std::uint32_t word = bit & 32 ? high[i] : low[i];
      if (bit >= 0 && (word >> (bit & 31) & 1u) == 0) scores[j] = tile::minus_infinity;
    }
  }
};

/// Of kernels that don't know trees.
struct NoTreeMask {
  template <typename... Any>
  TANDEM_DEVICE void begin(const Any&...) {}
  template <typename... Any>
  TANDEM_DEVICE void hide(const Any&...) const {}
};

template <ForwardVariant V>
using TreeMaskOf = std::conditional_t<V.knows_trees(), TreeMask<V>, NoTreeMask>;

}  // namespace tandem::forward
