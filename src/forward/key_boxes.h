// A block of keys or values on its way into shared memory: one box of TMA, or several where keys are paged.
#pragma once

#include "forward/arguments.h"
#include "forward/sequence.h"
#include "forward/variant.h"
#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::forward {

struct KeyBlock {
  int index, kv_head;
  Sequence sequence;

  /// Where keys are not paged.
  TANDEM_DEVICE hw::BoxOrigin origin(int block_n) const {
    return {0, sequence.k_begin + index * block_n, kv_head, sequence.k_batch};
  }
};

/// Where the box of a paged sequence's keys from `key` on begins. Pages that are not in use, or do not exist,
/// are out of bounds: TMA fills with zeros, and their slots of the table are not read.
TANDEM_DEVICE hw::BoxOrigin box_in_page(const VarlenArguments& varlen, const KeyBlock& block, int key) {
  int page = varlen.pages;
  if (key < block.sequence.k_len) {
    page = hw::load_global(varlen.page_table + block.sequence.k_batch * varlen.page_table_stride +
                           (key >> varlen.log2_page_size));
    if (page < 0 || page > varlen.pages) page = varlen.pages;
  }
  return {0, key & ((1 << varlen.log2_page_size) - 1), block.kv_head, page};
}

/// Starts loading a block of keys or values; all its bytes arrive at `barrier`. All tiles of a head read
/// them, so L2 is to keep them.
template <ForwardVariant V, typename KeyTile>
TANDEM_DEVICE void load_keys(KeyTile& to, const hw::TensorMap& map, hw::Barrier& barrier,
                             const ForwardArguments& args, const KeyBlock& block) {
  constexpr auto policy = hw::CachePolicy::evict_last;
  if (V.lengths == Lengths::uniform || args.varlen.page_table == nullptr) {
    tile::load_tile(to, map, barrier, block.origin(V.block_n), policy);
    return;
  }
  const int box_rows = args.varlen.box_rows;
  for (int row = 0; row < V.block_n; row += box_rows) {
    const hw::BoxOrigin at = box_in_page(args.varlen, block, block.index * V.block_n + row);
    TANDEM_UNROLL
    for (int p = 0; p < KeyTile::panels; ++p) {
      hw::load_box(to.panel[p][row], map, barrier, {p * tile::panel_columns, at.s, at.h, at.b}, policy);
    }
  }
}

}  // namespace tandem::forward
