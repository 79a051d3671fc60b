// Random problems for a variant of the backward on the software Hopper.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "apps/sim/backward_sim.h"
#include "tests/sim/runs.h"
#include "tests/support/backward_case.h"

namespace tandem::test {

/// Those of keys that add to dQ, in the ring of sums.
inline std::vector<backward::BackwardVariant> variants_with_ring(backward::Lengths lengths) {
  std::vector<backward::BackwardVariant> variants;
  std::ranges::copy_if(backward::all_variants(lengths), std::back_inserter(variants),
                       &backward::BackwardVariant::adds_dq);
  return variants;
}

/// A few elements, the ends of blocks and next to them, anything up to `most_blocks`; rarely none.
inline std::int64_t draw_backward_length(Random& random, int block, std::uint64_t most_blocks) {
  const std::uint64_t kind = random() % 16;
  if (kind == 0) return 0;
  if (kind == 1) return 1 + static_cast<std::int64_t>(random() % 2);
  const auto blocks = static_cast<std::int64_t>(1 + random() % most_blocks);
  if (kind <= 10) return block * blocks + static_cast<std::int64_t>(kind % 3) - 1;
  return 1 + static_cast<std::int64_t>(random() % (most_blocks * static_cast<std::uint64_t>(block)));
}

/// From `least` on, of a few blocks; every other one around a block's end.
inline std::int64_t draw_long_length(Random& random, int block, std::int64_t least) {
  const std::uint64_t kind = random() % 6;
  const std::int64_t length = least + static_cast<std::int64_t>(random() % 64);
  if (kind > 2) return length;
  return (length + block - 1) / block * block + static_cast<std::int64_t>(kind) - 1;
}

/// A problem that the variant serves. Every other one has so many queries and keys that all stages of all
/// pipelines are used again, and a gradient of lse.
inline BackwardCase draw_case(const backward::BackwardVariant& variant, std::uint64_t seed) {
  Random random(seed);
  const tandem_dtype dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  BackwardCase c = random_tma_backward_case(seed, dtype, 1);
  c.forward.nearly_normal = true;
  ForwardCase& f = c.forward;
  const bool is_long = seed % 2 == 1;
  f.batch = is_long ? 1 : 1 + static_cast<std::int64_t>(random() % 2);
  f.kv_heads = is_long ? 1 : 1 + static_cast<std::int64_t>(random() % 2);
  f.q_heads = f.kv_heads * (1 + static_cast<std::int64_t>(random() % 3));
  if (is_long && f.q_heads > 2) f.q_heads = 2;
  const std::uint64_t most_blocks = f.batch * f.q_heads > 2 ? 1 : 2;  // many heads of few tiles
  f.q_len = is_long ? draw_long_length(random, variant.block_m, 270)
                    : draw_backward_length(random, variant.block_m, most_blocks);
  f.k_len = is_long ? draw_long_length(random, variant.block_n, 200)
                    : draw_backward_length(random, variant.block_n, most_blocks);
  f.mask = seed % 4 == 1 ? core::Mask::full() : random_mask(random, f.q_len, f.k_len);
  if (seed % 8 == 2) {  // keys that nobody sees
    f.k_len = std::max(f.k_len, f.q_len + 40);
    f.mask.left = static_cast<std::int64_t>(random() % 40);
  }
  f.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  f.softcap = variant.softcap ? 1.f + static_cast<float>(random() % 30) : 0.f;
  c.dlse = is_long;
  return c;
}

}  // namespace tandem::test
