// What is built by default, and for which lengths.
#pragma once

#include <array>
#include <cstddef>

#include "forward/variant.h"

namespace tandem::forward {

/// Which attention a line of the table is for.
enum class Attention { full, causal, windowed };

constexpr MaskKind mask_kind(Attention attention) {
  return attention == Attention::windowed ? MaskKind::band : MaskKind::prefix;
}

/// One line of the table: for this attention, with a cap or without, from `min_keys` keys on, what measures
/// best (docs/performance/forward.md). Lines may share a kernel.
struct Recipe {
  Attention attention;
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
  using enum Attention;
  using enum Overlap;
  using enum TurnPolicy;
  if constexpr (head_dim == 64) {
    return std::array{Recipe{full, false, 0, 192, 128, 2, two_stage, pingpong},
                      Recipe{full, true, 0, 192, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 1536, 192, 128, 2, two_stage, pingpong},
                      Recipe{causal, true, 0, 192, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 2560, 192, 128, 2, two_stage, pingpong},
                      Recipe{windowed, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 96) {
    return std::array{Recipe{full, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{full, false, 1536, 192, 96, 2, two_stage, pingpong},
                      Recipe{full, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 1536, 192, 96, 2, two_stage, pingpong},
                      Recipe{causal, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 1536, 192, 96, 2, two_stage, pingpong},
                      Recipe{windowed, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 128) {
    return std::array{Recipe{full, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{full, false, 1536, 128, 160, 2, two_stage, free},
                      Recipe{full, false, 6144, 128, 176, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{causal, false, 3072, 128, 160, 2, two_stage, free},
                      Recipe{causal, false, 12288, 128, 176, 2, two_stage, free},
                      Recipe{causal, true, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 0, 128, 128, 2, two_stage, pingpong},
                      Recipe{windowed, false, 6144, 128, 176, 2, two_stage, free},
                      Recipe{windowed, true, 0, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 192) {
    return std::array{Recipe{full, false, 0, 128, 96, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 96, 2, two_stage, free},
                      Recipe{causal, false, 0, 128, 96, 2, two_stage, free},
                      Recipe{causal, true, 0, 128, 96, 2, two_stage, free},
                      Recipe{windowed, false, 0, 128, 96, 2, two_stage, free},
                      Recipe{windowed, true, 0, 128, 96, 2, two_stage, free}};
  } else {
    static_assert(head_dim == 256);
    return std::array{Recipe{full, false, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{full, false, 768, 128, 80, 2, two_stage, free},
                      Recipe{full, true, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{causal, false, 0, 128, 64, 2, two_stage, free},
                      Recipe{causal, false, 1536, 128, 80, 2, two_stage, free},
                      Recipe{causal, true, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{windowed, false, 0, 128, 64, 2, two_stage, pingpong},
                      Recipe{windowed, false, 3072, 128, 80, 2, two_stage, free},
                      Recipe{windowed, true, 0, 128, 64, 2, two_stage, pingpong}};
  }
}

/// What serves variable lengths, whose producers need registers that the consumers of larger tiles don't
/// leave.
template <int head_dim>
constexpr auto varlen_recipes() {
  using enum Attention;
  constexpr auto recipe = [](Attention attention, bool softcap) {
    const int block_n = head_dim <= 128 ? 128 : head_dim == 192 ? 80 : softcap ? 48 : 64;
    return Recipe{attention, softcap, 0, 128, block_n, 2, Overlap::two_stage, TurnPolicy::pingpong};
  };
  return std::array{recipe(full, false), recipe(causal, false), recipe(windowed, false),
                    recipe(windowed, true)};
}

/// A variant, the attention that it is built for, and the fewest keys from which on it is preferred.
struct Candidate {
  ForwardVariant variant;
  Attention attention;
  int min_keys;
};

/// Each recipe for each operand type.
template <int head_dim, Lengths lengths = Lengths::uniform>
constexpr auto candidates() {
  constexpr auto lines = [] {
    if constexpr (lengths == Lengths::varlen) {
      return varlen_recipes<head_dim>();
    } else {
      return recipes<head_dim>();
    }
  }();
  std::array<Candidate, 2 * lines.size()> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      all[i++] = {{operand, head_dim, mask_kind(r.attention), r.softcap, r.overlap, r.turn, r.block_m,
                   r.block_n, r.kv_stages, lengths, operand},
                  r.attention,
                  r.min_keys};
    }
  }
  return all;
}

}  // namespace tandem::forward
