// The table of what is built, and for which lengths.
#pragma once

#include <array>
#include <cstddef>

#include "forward/variant.h"

namespace tandem::forward {

/// One line of the table: for these masks and caps, from `min_keys` keys on, what measures best
/// (docs/performance.md).
struct Recipe {
  MaskKind mask;
  bool softcap;
  int min_keys;
  int block_m, block_n, kv_stages;
  Overlap overlap;
  TurnPolicy turn;
};

/// Ascending: the first that a problem's head dim fits into pads it least.
inline constexpr std::array built_head_dims = {64, 128, 256};
inline constexpr std::size_t recipes_per_head_dim = 5;

/// Later lines serve longer problems. Masks and caps need registers, hence the smaller blocks; short causal
/// problems waste less on smaller tiles.
constexpr std::array<Recipe, recipes_per_head_dim> recipes(int head_dim) {
  using enum MaskKind;
  using enum Overlap;
  using enum TurnPolicy;
  switch (head_dim) {
    case 64:
      return {{{full, false, 0, 192, 128, 2, serial, pingpong},
               {full, true, 0, 192, 128, 2, serial, pingpong},
               {band, false, 0, 128, 128, 2, serial, pingpong},
               {band, false, 1536, 192, 128, 2, serial, pingpong},
               {band, true, 0, 192, 128, 2, serial, pingpong}}};
    case 128:
      return {{{full, false, 0, 128, 176, 2, serial, pingpong},
               {full, true, 0, 128, 128, 2, serial, pingpong},
               {band, false, 0, 128, 128, 2, serial, pingpong},
               {band, false, 6144, 128, 160, 2, serial, pingpong},
               {band, true, 0, 128, 128, 2, serial, pingpong}}};
    default:
      return {{{full, false, 0, 128, 80, 2, two_stage, free},
               {full, true, 0, 128, 64, 2, two_stage, free},
               {band, false, 0, 128, 64, 2, two_stage, free},
               {band, false, 1536, 128, 80, 2, two_stage, free},
               {band, true, 0, 128, 64, 2, two_stage, free}}};
  }
}

/// A variant, and the fewest keys from which on it is preferred.
struct Candidate {
  ForwardVariant variant;
  int min_keys;
};

/// Everything that is built for one head dim: each recipe for each operand type.
constexpr std::array<Candidate, 2 * recipes_per_head_dim> candidates_of(int head_dim) {
  std::array<Candidate, 2 * recipes_per_head_dim> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : recipes(head_dim)) {
      all[i++] = {
          {operand, head_dim, r.mask, r.softcap, r.overlap, r.turn, r.block_m, r.block_n, r.kv_stages},
          r.min_keys};
    }
  }
  return all;
}

/// Everything that is built.
constexpr auto all_candidates() {
  constexpr std::size_t each = candidates_of(built_head_dims[0]).size();
  std::array<Candidate, each * built_head_dims.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = candidates_of(built_head_dims[i / each])[i % each];
  return all;
}

}  // namespace tandem::forward
