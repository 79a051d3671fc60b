// What is built for 8-bit operands.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "forward/recipes.h"

namespace tandem::forward {

/// Head dims of the kernels for 8-bit operands.
template <int head_dim>
inline constexpr bool has_eight_bit_kernels = head_dim == 64 || head_dim == 128 || head_dim == 256;

/// Keys of a block, so that a row of transposed values is one line of 128 bytes. Scales that keys share have
/// to be of whole blocks.
inline constexpr int eight_bit_block_n = 128;

/// One kernel of those, but for the output's type.
struct EightBitRecipe {
  ValueLayout values;
  MaskKind mask;
  bool softcap;
  hw::Operand operand = hw::Operand::e4m3;
  int value_terms = 1;
  bool fp16_scores = false;
  int block_m = 128;
  Price price = {};  ///< of kernels that the cost model chooses from
};

/// Values by rows are for callers that have them so, and for study: bands serve every mask.
inline constexpr std::array eight_bit_recipes = {
    EightBitRecipe{ValueLayout::columns, MaskKind::prefix, false},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, false},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, true},
    EightBitRecipe{ValueLayout::rows_transposed, MaskKind::band, false},
    EightBitRecipe{ValueLayout::rows_transposed, MaskKind::band, true}};

/// Where fp16 holds the scores, half as many registers do: of a third consumer at head dim 64. ptxas
/// serialises the products of wide heads (C7511).
template <int head_dim>
constexpr auto fp16_score_recipes() {
  constexpr auto recipe = [](MaskKind mask, int block_m, Price price = {}) {
    return EightBitRecipe{ValueLayout::columns, mask, false, hw::Operand::e4m3, 1, true, block_m, price};
  };
  if constexpr (head_dim == 64) {
    return std::array{recipe(MaskKind::prefix, 192, {916, 2000}), recipe(MaskKind::prefix, 128, {767, 1460}),
                      recipe(MaskKind::band, 192)};
  } else if constexpr (head_dim == 128) {
    return std::array{recipe(MaskKind::prefix, 128), recipe(MaskKind::band, 128)};
  } else {
    return std::array<EightBitRecipe, 0>{};
  }
}

/// Queries and keys as integers, beside values of one e4m3 number or of two: values that lie by key are not
/// worth a finer score.
inline constexpr std::array int8_recipes = {
    EightBitRecipe{ValueLayout::columns, MaskKind::prefix, false, hw::Operand::int8, 1},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, false, hw::Operand::int8, 1},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, true, hw::Operand::int8, 1},
    EightBitRecipe{ValueLayout::columns, MaskKind::prefix, false, hw::Operand::int8, 2},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, false, hw::Operand::int8, 2},
    EightBitRecipe{ValueLayout::columns, MaskKind::band, true, hw::Operand::int8, 2}};

/// Two products, of scores and of the block's output, and the output itself fit in registers side by side up
/// to 128 columns; wider heads wait for each, and so do kernels that transpose, whose producers need
/// registers, and those that cap sums of integers.
template <int head_dim>
constexpr ForwardVariant eight_bit_variant(const EightBitRecipe& recipe, hw::Operand output) {
  constexpr bool wide = head_dim > 128;
  const bool capped_sums = recipe.softcap && recipe.operand == hw::Operand::int8;
  const bool transposes = recipe.values == ValueLayout::rows_transposed;
  return {.operand = recipe.operand,
          .head_dim = head_dim,
          .mask = recipe.mask,
          .softcap = recipe.softcap,
          .overlap = wide || transposes || capped_sums ? Overlap::serial : Overlap::two_stage,
          .turn = head_dim == 64 || (!wide && !transposes) ? TurnPolicy::pingpong : TurnPolicy::free,
          .block_m = recipe.block_m,
          .block_n = wide && transposes ? eight_bit_block_n / 2 : eight_bit_block_n,
          .kv_stages = wide ? 2 : 3,
          .output = output,
          .values = recipe.values,
          .value_dim = head_dim,
          .fp16_scores = recipe.fp16_scores,
          .value_terms = recipe.value_terms};
}

template <int head_dim, std::size_t count>
constexpr auto eight_bit_candidates(const std::array<EightBitRecipe, count>& recipes) {
  std::array<Candidate, 2 * count> all{};
  std::size_t i = 0;
  for (hw::Operand output : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const EightBitRecipe& recipe : recipes) all[i++] = {eight_bit_variant<head_dim>(recipe, output)};
  }
  return all;
}

/// All of e4m3 queries and keys.
template <int head_dim>
constexpr auto e4m3_candidates() {
  constexpr auto fp16_scores = eight_bit_candidates<head_dim>(fp16_score_recipes<head_dim>());
  constexpr auto others = eight_bit_candidates<head_dim>(eight_bit_recipes);
  std::array<Candidate, fp16_scores.size() + others.size()> all{};
  std::copy(others.begin(), others.end(), std::copy(fp16_scores.begin(), fp16_scores.end(), all.begin()));
  return all;
}

}  // namespace tandem::forward
