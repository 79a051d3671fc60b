// Random batches for a forward variant of variable lengths on the software Hopper.
#pragma once

#include <algorithm>
#include <cstdint>

#include "apps/sim/forward_sim.h"
#include "tests/sim/forward_draws.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {

inline VarlenCase draw_varlen_case(const forward::ForwardVariant& variant, std::uint64_t seed) {
  Random random(seed * 1000 + static_cast<std::uint64_t>(variant.head_dim) + (variant.softcap ? 1 : 0));
  VarlenCase c = draw_varlen_case(random, {variant.block_m, variant.block_n});
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  if (variant.mask == forward::MaskKind::prefix) c.mask.left = core::Mask::unlimited, c.mask.chunk = 0;
  if (!variant.knows_chunks()) c.mask.chunk = 0;
  if (!variant.knows_slopes()) c.slopes = false;
  if (!variant.knows_trees()) c.tree = false;
  if (c.tree)  // mostly no more queries than words have bits, often as many
    for (std::int64_t& length : c.q_lens)
      if (random() % 4 != 0)
        length = std::min(length, random() % 4 == 0 ? 64 : 1 + static_cast<std::int64_t>(random() % 64));
  if (variant.has_narrow_values()) c.new_lens.clear();  // what is appended has as many columns
  if (variant.has_narrow_values() || (!c.appends() && random() % 4 == 0))
    c.value_dim = draw_value_dim(variant, random);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  if (variant.softcap) c.softcap = 1.f + static_cast<float>(random() % 30);
  return c;
}

}  // namespace tandem::test
