// Where a block of keys or values lies: in one box of TMA, or in several where keys are paged.
#pragma once

#include "forward/arguments.h"
#include "forward/tile_list.h"
#include "forward/variant.h"
#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::forward {

/// Where the keys of a tile lie.
struct KeyPlace {
  int kv_head, begin, batch;

  template <ForwardVariant V>
  TANDEM_DEVICE static KeyPlace of(const ForwardArguments& args, const core::Tile& tile) {
    const TileKeys keys = keys_of<V>(tile);
    return {args.group.divide(queries_of<V>(tile).pack).quotient, keys.k_begin, keys.k_batch};
  }
  /// Of the block whose first key is `key`, where keys are not paged.
  TANDEM_DEVICE hw::BoxOrigin origin(int key) const { return {0, begin + key, kv_head, batch}; }
};

/// Pages that a block of keys lies in, one a lane.
///
/// A block comes in boxes of at most a page. Pages that are not in use, or do not exist, are out of the map's
/// bounds: TMA fills with zeros, and their stages of the table are not read.
struct BlockPages {
  int first_key, box_rows;
  std::uint32_t own_page;  ///< of the lane's box

  /// Warp. Of the block whose first key is `key`; the sequence has `k_len` keys.
  template <ForwardVariant V>
  TANDEM_DEVICE static BlockPages of(const VarlenArguments& varlen, int batch, int key, int k_len) {
    const int box = static_cast<int>(hw::lane_index()), own_key = key + box * varlen.box_rows;
    int page = varlen.pages;
    if (own_key < key + V.block_n && own_key < k_len) {
      page = hw::load_global(varlen.page_table + batch * varlen.page_table_stride +
                             (own_key >> varlen.log2_page_size));
      if (page < 0 || page > varlen.pages) page = varlen.pages;
    }
    return {key, varlen.box_rows, static_cast<std::uint32_t>(page)};
  }
  /// Warp: starts loading the block; `loads`: in the one lane that does.
  template <ForwardVariant V, typename Tile>
  TANDEM_DEVICE void load(Tile& to, const hw::Panels& panels, hw::Barrier& barrier,
                          const VarlenArguments& varlen, int kv_head, bool loads) const {
    const int page_mask = (1 << varlen.log2_page_size) - 1;
    TANDEM_DONT_UNROLL
    for (int row = 0, box = 0; row < V.block_n; row += box_rows, ++box) {
      const auto page = static_cast<int>(hw::shuffle(own_page, static_cast<std::uint32_t>(box)));
      if (!loads) continue;
      const hw::BoxOrigin origin{0, (first_key + row) & page_mask, kv_head, page};
      tile::load_rows(to, row, panels, barrier, origin, hw::CachePolicy::evict_last);
    }
  }
};

}  // namespace tandem::forward
