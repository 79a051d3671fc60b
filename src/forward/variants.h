// The table of what is built.
#pragma once

#include <array>
#include <cstddef>

#include "forward/variant.h"

namespace tandem::forward {

/// Tile and ring depth by head dim and mask; the search behind it is in docs/performance.md.
struct TileShape {
  int block_m, block_n, kv_stages;
};

constexpr TileShape tile_shape(int head_dim, MaskKind mask) {
  const bool full = mask == MaskKind::full;
  switch (head_dim) {
    case 64:
      return {192, 128, 2};
    case 128:
      return full ? TileShape{128, 176, 2} : TileShape{128, 128, 2};
    default:
      return TileShape{128, 80, 2};
  }
}

/// Ascending: the first that a problem's head dim fits into pads it least.
inline constexpr std::array built_head_dims = {64, 128, 256};

/// All variants of one head dim: operand x mask x softcap.
constexpr std::array<ForwardVariant, 8> variants_of(int head_dim) {
  std::array<ForwardVariant, 8> variants{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (MaskKind mask : {MaskKind::full, MaskKind::band}) {
      for (bool softcap : {false, true}) {
        const TileShape shape = tile_shape(head_dim, mask);
        variants[i++] = {operand,         head_dim,      mask,          softcap,
                         Overlap::serial, shape.block_m, shape.block_n, shape.kv_stages};
      }
    }
  }
  return variants;
}

/// Everything that is built.
constexpr auto all_variants() {
  constexpr std::size_t each = variants_of(built_head_dims[0]).size();
  std::array<ForwardVariant, each * built_head_dims.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = variants_of(built_head_dims[i / each])[i % each];
  return all;
}

}  // namespace tandem::forward
