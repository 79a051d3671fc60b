// What is built by default, and for which lengths.
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

/// Later lines serve longer problems: short causal ones waste less on smaller tiles, long ones read less of K
/// and V for each product on larger. Masks and caps need registers, hence their smaller blocks. Turns pay
/// where the softmax is long beside the products (small head dims) or problems are short.
template <int head_dim>
constexpr auto recipes() {
  using enum MaskKind;
  using enum Overlap;
  using enum TurnPolicy;
  if constexpr (head_dim == 64) {
    return std::array{Recipe{full, false, 0, 192, 128, 2, two_stage, pingpong},
                      Recipe{full, true, 0, 192, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 2560, 192, 128, 2, two_stage, pingpong},
                      Recipe{band, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 96) {
    return std::array{Recipe{full, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{full, false, 1536, 192, 96, 2, two_stage, pingpong},
                      Recipe{full, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 1536, 192, 96, 2, two_stage, pingpong},
                      Recipe{band, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 128) {
    return std::array{Recipe{full, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{full, false, 1536, 128, 160, 2, two_stage, free},
                      Recipe{full, false, 6144, 128, 176, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 6144, 128, 176, 2, two_stage, free},
                      Recipe{band, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 192) {
    return std::array{Recipe{full, false, 0, 128, 96, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 96, 2, two_stage, free},
                      Recipe{band, false, 0, 128, 96, 2, two_stage, free},
                      Recipe{band, true, 0, 128, 96, 2, two_stage, free}};
  } else {
    static_assert(head_dim == 256);
    return std::array{Recipe{full, false, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{full, false, 768, 128, 80, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{band, false, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{band, false, 3072, 128, 80, 2, two_stage, free},
                      Recipe{band, true, 0, 128, 64, 2, two_stage, pingpong}};
  }
}

/// A variant, and the fewest keys from which on it is preferred.
struct Candidate {
  ForwardVariant variant;
  int min_keys;
};

/// What is built by default for one head dim: each recipe for each operand type.
template <int head_dim>
constexpr auto candidates() {
  constexpr auto lines = recipes<head_dim>();
  std::array<Candidate, 2 * lines.size()> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      all[i++] = {
          {operand, head_dim, r.mask, r.softcap, r.overlap, r.turn, r.block_m, r.block_n, r.kv_stages},
          r.min_keys};
    }
  }
  return all;
}

}  // namespace tandem::forward
