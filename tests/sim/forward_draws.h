// Random problems for a forward variant of the software Hopper.
#pragma once

#include <algorithm>
#include <cstdint>

#include "apps/sim/forward_sim.h"
#include "forward/plan.h"
#include "tests/sim/runs.h"
#include "tests/support/forward_case.h"

namespace tandem::test {

/// Lengths around the tile's: at its edges and next to them, a few elements, rarely none, anything up to a
/// few tiles.
inline std::int64_t draw_length(Random& random, int block, int most_blocks) {
  const std::uint64_t kind = random() % 16;
  if (kind == 0) return 0;
  if (kind == 1) return static_cast<std::int64_t>(1 + random() % 3);
  const auto blocks = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(most_blocks));
  if (kind <= 6) return block * blocks + static_cast<std::int64_t>(random() % 3) - 1;
  return static_cast<std::int64_t>(1 +
                                   random() % static_cast<std::uint64_t>(most_blocks * block + block / 2));
}

/// What 8-bit inputs have besides.
inline void draw_eight_bit(ForwardCase& c, const forward::ForwardVariant& variant, Random& random) {
  draw_eight_bit(c, random);
  c.head_dim = variant.head_dim - 16 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  c.eight_bit.output = variant.output == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.eight_bit.v_transposed = variant.values == forward::ValueLayout::columns;
  c.dtype = variant.operand == hw::Operand::int8 ? TANDEM_INT8 : TANDEM_E4M3;
  c.eight_bit.v_terms = variant.value_terms;
  c.eight_bit.amplitude = variant.fp16_scores ? 8 : 0;
  c.eight_bit.q_dot_k_shift = random() % 2 == 0 && variant.adds_shifts() && !variant.softcap;
  c.eight_bit.v_shift = c.eight_bit.v_shift && variant.adds_shifts();
  // Integers without any scale make scores whose log-sum-exp fp32 does not hold well.
  const bool without_scales = c.eight_bit.q.heads == 0 && c.eight_bit.k.heads == 0;
  if (c.dtype == TANDEM_INT8 && without_scales) c.scale = 0.005f;
}

/// Columns of values that are not as many as keys' have to be. Those of kernels for such values often fill
/// them.
inline std::int64_t draw_value_dim(const forward::ForwardVariant& variant, Random& random) {
  if (variant.has_narrow_values() && random() % 2 == 0) return variant.value_dim;
  return 8 * static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(variant.value_dim / 8));
}

/// What is left to draw once lengths and heads are.
inline void draw_rest(ForwardCase& c, const forward::ForwardVariant& variant, Random& random) {
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  const std::uint64_t padded_dims =
      variant.shares_rows() ? 32 : 8;  // down to what another kernel would serve
  c.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % padded_dims));
  c.mask = random_mask(random, c.q_len, c.k_len);
  if (variant.mask == forward::MaskKind::prefix) c.mask.left = core::Mask::unlimited;
  if (random() % 4 == 0) c.scale = 0.3f;
  if (variant.softcap) c.softcap = 1.f + static_cast<float>(random() % 30);
  c.lse = random() % 4 != 0;
  for (Layout* layout : {&c.q, &c.k, &c.v, &c.o, &c.lse_layout}) *layout = random_tma_layout(random);
  if (variant.is_8_bit()) return draw_eight_bit(c, variant, random);
  if (random() % 6 == 0 || variant.has_narrow_values()) c.value_dim = draw_value_dim(variant, random);
}

/// Of a drawn problem, with scales for it.
inline void keep_one_head(ForwardCase& c) {
  c.batch = c.q_heads = c.kv_heads = 1;
  for (ScaleCase* scales : {&c.eight_bit.q, &c.eight_bit.k, &c.eight_bit.v})
    scales->heads = std::min<std::int64_t>(scales->heads, 1);
}

/// A problem that the variant serves, of a few tiles.
inline ForwardCase draw_case(const forward::ForwardVariant& variant, std::uint64_t seed) {
  constexpr std::int64_t most_tiles = 12;
  Random random(seed);
  ForwardCase c;
  c.seed = seed, c.nearly_normal = true;
  c.q_len = draw_length(random, variant.block_m, 2);
  c.k_len = draw_length(random, variant.block_n, 5);
  c.batch = 1 + static_cast<std::int64_t>(random() % 3);
  c.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  c.q_heads = c.kv_heads * (1 + static_cast<std::int64_t>(random() % 3));
  const std::int64_t tiles = (c.q_len + variant.block_m - 1) / variant.block_m;
  while (c.batch > 1 && c.batch * c.q_heads * tiles > most_tiles) --c.batch;
  draw_rest(c, variant, random);
  return c;
}

/// One with few queries of grouped heads, packed. Four seeds in a row draw packs of other sizes for the next
/// variant, so that all sizes are drawn.
inline ForwardCase draw_packed_case(const forward::ForwardVariant& variant, std::uint64_t seed) {
  const std::vector<forward::ForwardVariant> variants = sim::forward_variants();
  const auto place = std::find(variants.begin(), variants.end(), variant) - variants.begin();
  const std::int64_t heads = std::int64_t{2} << (number_of(seed) + 4 * static_cast<std::uint64_t>(place)) % 6;
  Random random(seed);
  ForwardCase c;
  c.seed = seed, c.nearly_normal = true;
  c.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  c.q_heads = c.kv_heads * heads * (heads <= 4 && random() % 4 == 0 ? 3 : 1);
  c.k_len = draw_length(random, variant.block_n, 2);
  const auto most_queries = static_cast<std::uint64_t>(5 * variant.block_m / 2 / heads);
  do {
    c.q_len = 1 + static_cast<std::int64_t>(random() % most_queries);
  } while (forward::tiling_of(shapes_of(c), variant).packing.heads() != heads);
  draw_rest(c, variant, random);
  return c;
}

}  // namespace tandem::test
