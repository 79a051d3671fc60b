// The table of what is built.
#pragma once

#include <array>
#include <cstddef>

#include "forward/variant.h"

namespace tandem::forward {

/// What measures best for a head dim and a mask; the search behind it is in docs/performance.md.
struct Recipe {
  int block_m, block_n, kv_stages;
  Overlap overlap;
  TurnPolicy turn;
};

constexpr Recipe best_recipe(int head_dim, MaskKind mask, bool softcap) {
  const bool wide = mask == MaskKind::full && !softcap;  // masks and caps need registers
  switch (head_dim) {
    case 64:
      return {192, 128, 2, Overlap::serial, TurnPolicy::pingpong};
    case 128:
      return {128, wide ? 176 : 128, 2, Overlap::serial, TurnPolicy::pingpong};
    default:
      return {128, softcap ? 64 : 80, 2, Overlap::two_stage, TurnPolicy::free};
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
        const Recipe r = best_recipe(head_dim, mask, softcap);
        variants[i++] = {operand, head_dim,  mask,      softcap,    r.overlap,
                         r.turn,  r.block_m, r.block_n, r.kv_stages};
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
