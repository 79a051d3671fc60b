// What is built by default.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "forward/variant.h"

namespace tandem::forward {

/// What was measured of a kernel (docs/performance/forward.md): nanoseconds of a multiprocessor for a block
/// of keys, for each of the blocks that are resident, and for a tile's beginning and end; of memory's time,
/// where the chip has more than one round of tiles, the percentage that shows beside the products.
struct Price {
  int block_ns = 0, tile_ns = 0;
  int exposed_memory = 0;

  constexpr bool is_known() const { return block_ns > 0; }
};

/// One line of the table. Which of those that serve a problem is taken is the cost model's choice (cost.h).
struct Recipe {
  MaskKind mask;
  bool softcap;
  int block_m, block_n, kv_stages;
  Overlap overlap;
  TurnPolicy turn;
  Price price = {};  ///< by which the cost model compares it with others (cost.h)
};

/// The head dim whose kernels serve fixed lengths only (wide_consumer.h), in quarters of blocks.
inline constexpr int wide_head_dim = 512;

/// Long rows of keys want wide blocks, which read less of Q for each product; few keys want blocks that they
/// fill; few queries, tiles that these fill. Tiles of 64 rows share a multiprocessor: while one loads its
/// queries and stores its output, the other multiplies. Masks and caps need registers, hence their smaller
/// blocks. Turns pay where the softmax is long beside the products (small head dims) or problems are short.
template <int head_dim>
constexpr auto recipes() {
  using enum MaskKind;
  using enum Overlap;
  using enum TurnPolicy;
  if constexpr (head_dim == 64) {
    return std::array{Recipe{prefix, false, 192, 128, 2, two_stage, pingpong, {1480, 456}},
                      Recipe{prefix, false, 128, 128, 2, two_stage, pingpong, {1165, 764}},
                      Recipe{prefix, false, 64, 64, 2, two_stage, free, {640, 600}},
                      Recipe{prefix, true, 192, 112, 2, two_stage, pingpong},
                      Recipe{band, false, 192, 112, 2, two_stage, pingpong, {1420, 1467}},
                      Recipe{band, false, 128, 128, 2, two_stage, pingpong, {1300, 675}},
                      Recipe{band, false, 64, 64, 2, two_stage, free, {650, 966}},
                      Recipe{band, true, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 96) {
    return std::array{Recipe{prefix, false, 192, 96, 2, two_stage, pingpong, {1438, 1300}},
                      Recipe{prefix, false, 128, 128, 2, two_stage, pingpong, {1510, 1429}},
                      Recipe{prefix, false, 64, 64, 2, two_stage, free, {770, 1400}},
                      Recipe{prefix, true, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 192, 96, 2, two_stage, pingpong, {1842, 1304}},
                      Recipe{band, false, 128, 128, 2, two_stage, pingpong, {1837, 1257}},
                      Recipe{band, false, 64, 64, 2, two_stage, free, {950, 1300}},
                      Recipe{band, true, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 128) {
    return std::array{Recipe{prefix, false, 128, 128, 2, two_stage, pingpong, {1630, 1200}},
                      Recipe{prefix, false, 128, 160, 2, two_stage, free, {1950, 1800, 25}},
                      Recipe{prefix, false, 64, 64, 2, two_stage, free, {930, 950}},
                      Recipe{prefix, true, 128, 128, 2, two_stage, pingpong},
                      Recipe{band, false, 128, 128, 2, two_stage, pingpong, {2050, 797}},
                      Recipe{band, false, 64, 64, 2, two_stage, free, {1050, 1350}},
                      Recipe{band, true, 128, 128, 2, two_stage, pingpong}};
  } else if constexpr (head_dim == 192) {
    return std::array{Recipe{prefix, false, 128, 96, 2, two_stage, free, {1815, 1857}},
                      Recipe{prefix, false, 64, 48, 2, two_stage, free, {980, 2000}},
                      Recipe{prefix, true, 128, 96, 2, two_stage, free},
                      Recipe{band, false, 128, 96, 2, two_stage, free, {2172, 1596}},
                      Recipe{band, true, 128, 96, 2, two_stage, free}};
  } else if constexpr (head_dim == wide_head_dim) {
    return std::array{
        Recipe{prefix, false, 64, 64, 4, serial, free}, Recipe{prefix, true, 64, 64, 4, serial, free},
        Recipe{band, false, 64, 64, 4, serial, free}, Recipe{band, true, 64, 64, 4, serial, free}};
  } else {
    static_assert(head_dim == 256);
    return std::array{Recipe{prefix, false, 128, 64, 2, two_stage, pingpong, {1520, 2600}},
                      Recipe{prefix, false, 128, 64, 2, two_stage, free, {1500, 2450}},
                      Recipe{prefix, false, 128, 80, 2, two_stage, free, {1880, 2676}},
                      Recipe{prefix, false, 64, 32, 2, two_stage, free, {1220, 2300}},
                      Recipe{prefix, true, 128, 64, 2, two_stage, pingpong},
                      Recipe{band, false, 128, 64, 2, two_stage, pingpong, {1710, 3200}},
                      Recipe{band, false, 64, 32, 2, two_stage, free, {1250, 2300}},
                      Recipe{band, true, 128, 64, 2, two_stage, pingpong}};
  }
}

/// What serves variable lengths: of the lines above, those that keys in pages allow (blocks of many boxes at
/// most), and fewer, since lengths of one call differ. The cost model goes by the bounds of the lengths.
template <int head_dim>
constexpr auto varlen_recipes() {
  using enum MaskKind;
  using enum TurnPolicy;
  constexpr auto recipe = [](MaskKind mask, bool softcap, int block_m, int block_n, TurnPolicy turn) {
    return Recipe{mask, softcap, block_m, block_n, 2, Overlap::two_stage, turn};
  };
  if constexpr (head_dim == 64) {
    return std::array{recipe(prefix, false, 192, 128, pingpong), recipe(prefix, false, 128, 128, pingpong),
                      recipe(band, false, 128, 128, pingpong), recipe(band, true, 128, 128, pingpong)};
  } else if constexpr (head_dim == 96) {
    return std::array{recipe(prefix, false, 128, 128, pingpong), recipe(band, false, 128, 128, pingpong),
                      recipe(band, true, 128, 128, pingpong)};
  } else if constexpr (head_dim == 128) {
    return std::array{recipe(prefix, false, 128, 128, pingpong), recipe(prefix, false, 128, 160, free),
                      recipe(band, false, 128, 128, pingpong), recipe(band, true, 128, 128, pingpong)};
  } else if constexpr (head_dim == 192) {
    return std::array{recipe(prefix, false, 128, 96, free), recipe(band, false, 128, 80, pingpong),
                      recipe(band, true, 128, 80, pingpong)};
  } else {
    return std::array{recipe(prefix, false, 128, 64, free), recipe(prefix, false, 128, 80, free),
                      recipe(band, false, 128, 64, pingpong), recipe(band, true, 128, 48, pingpong)};
  }
}

/// Head dims of the kernels for values that are narrower than keys, and their columns: those of multi-head
/// latent attention's prompts (DeepSeek).
template <int head_dim>
inline constexpr bool has_narrow_value_kernels = head_dim == 192;
inline constexpr int narrow_value_dim = 128;

/// What serves those: of fixed lengths, blocks that leave no room to stage the output, and such that do
/// (docs/varlen.md has their rates); of variable ones, blocks that pages divide, which are not measured.
inline constexpr std::array narrow_value_recipes = {
    Recipe{MaskKind::prefix, false, 128, 128, 2, Overlap::two_stage, TurnPolicy::free, {1780, 3300}},
    Recipe{MaskKind::prefix, false, 128, 112, 2, Overlap::two_stage, TurnPolicy::pingpong, {1575, 3000}},
    Recipe{MaskKind::band, false, 128, 112, 2, Overlap::two_stage, TurnPolicy::pingpong}};
inline constexpr std::array narrow_value_varlen_recipes = {
    Recipe{MaskKind::prefix, false, 128, 128, 2, Overlap::two_stage, TurnPolicy::free},
    Recipe{MaskKind::band, false, 128, 128, 2, Overlap::two_stage, TurnPolicy::pingpong}};

/// Head dims of the kernels for block lists; and of those for lists beside what kernels of variable lengths
/// alone know, of which the widest know least.
template <int head_dim>
inline constexpr bool has_sparse_kernels = head_dim == 64 || head_dim == 128 || head_dim == 256;
template <int head_dim>
inline constexpr bool has_sparse_varlen_kernels = has_sparse_kernels<head_dim> || head_dim == 192;

/// Rows of a tile and keys of a block divide the blocks of lists.
inline constexpr int block_list_unit = 128;

/// What serves block lists: bands, which know every mask.
template <int head_dim>
constexpr auto sparse_recipes() {
  constexpr int block_n = head_dim >= 192 ? 64 : 128;
  const auto recipe = [](bool softcap) {
    return Recipe{MaskKind::band, softcap, 128, block_n, 2, Overlap::two_stage, TurnPolicy::pingpong};
  };
  return std::array{recipe(false), recipe(true)};
}

/// A variant that dispatch may take.
struct Candidate {
  ForwardVariant variant;
  bool on_request = false;  ///< for study: serves only where its overlap, its turns or its tile are asked for
};

/// Each recipe for each operand type.
template <int head_dim, int value_dim = head_dim, std::size_t n>
constexpr auto candidates_of_recipes(const std::array<Recipe, n>& lines, Lengths lengths, bool block_sparse) {
  std::array<Candidate, 2 * n> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      all[i++] = {{operand, head_dim, r.mask, r.softcap, r.overlap, r.turn, r.block_m, r.block_n, r.kv_stages,
                   lengths, operand, ValueLayout::rows, value_dim, block_sparse}};
    }
  }
  return all;
}

/// Of values that are narrower than keys, for fixed lengths and for variable ones.
template <int head_dim>
constexpr auto narrow_value_candidates() {
  constexpr auto uniform =
      candidates_of_recipes<head_dim, narrow_value_dim>(narrow_value_recipes, Lengths::uniform, false);
  constexpr auto varlen =
      candidates_of_recipes<head_dim, narrow_value_dim>(narrow_value_varlen_recipes, Lengths::varlen, false);
  std::array<Candidate, uniform.size() + varlen.size()> all{};
  std::copy(varlen.begin(), varlen.end(), std::copy(uniform.begin(), uniform.end(), all.begin()));
  return all;
}

/// Those of the table above.
template <int head_dim>
constexpr auto candidates() {
  return candidates_of_recipes<head_dim>(recipes<head_dim>(), Lengths::uniform, false);
}

}  // namespace tandem::forward
