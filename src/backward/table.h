// The table of all variants that are built, by head dim: a file of kernels for each.
#pragma once

#include <array>
#include <cstddef>

#include "backward/variant.h"

namespace tandem::backward {

/// One line of the table, built for both operand types.
struct Recipe {
  Kernel kernel;
  DqSums dq_sums;
  bool softcap;
  int block_m, block_n, q_stages, stages;
};

/// Up to head dim 128 a tile of keys adds its parts of dQ; where the same bits are wanted always, and for
/// wider heads, whose adds would be more than L2 takes, dQ has a kernel of its own. The serial order is for
/// study.
template <int head_dim>
constexpr auto recipes() {
  using enum Kernel;
  using enum DqSums;
  if constexpr (head_dim <= 128) {
    constexpr int block_m = head_dim == 64 ? 128 : 64;
    return std::array{Recipe{keys_pipelined, added, false, block_m, 128, 2, 2},
                      Recipe{keys_pipelined, added, true, block_m, 128, 2, 2},
                      Recipe{keys_pipelined, none, false, block_m, 128, 2, 2},
                      Recipe{keys_pipelined, none, true, block_m, 128, 2, 2},
                      Recipe{queries, none, false, 128, 64, 1, 2},
                      Recipe{queries, none, true, 128, 64, 1, 2},
                      Recipe{keys_serial, added, false, block_m, 128, 2, 2}};
  } else {
    return std::array{Recipe{keys_in_roles, none, false, 64, 64, 2, 2},
                      Recipe{keys_in_roles, none, true, 64, 64, 2, 2},
                      Recipe{queries, none, false, 128, 64, 1, 2},
                      Recipe{queries, none, true, 128, head_dim == 256 ? 48 : 64, 1, 2}};
  }
}

/// What is compiled.
template <int head_dim>
constexpr auto built() {
  constexpr auto lines = recipes<head_dim>();
  std::array<BackwardVariant, 2 * lines.size()> variants{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      variants[i++] = {operand,   head_dim,  r.softcap,  r.kernel, r.dq_sums,
                       r.block_m, r.block_n, r.q_stages, r.stages};
    }
  }
  return variants;
}

/// Calls `visit.operator()<head_dim>()` for every file of kernels, head dims ascending. Those in between run
/// padded to the next.
template <typename Visit>
constexpr void for_each_built(Visit&& visit) {
  visit.template operator()<64>();
  visit.template operator()<96>();
  visit.template operator()<128>();
  visit.template operator()<192>();
  visit.template operator()<256>();
}

}  // namespace tandem::backward
