// Random decoding steps that the forward's kernels serve.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/support/decode_case.h"

namespace tandem::test {

inline DecodeCase draw_forward_step(std::uint64_t seed) {
  Random random(seed + 11);
  const auto dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  DecodeCase c = random_decode_case(seed, dtype, static_cast<std::int64_t>(8 + random() % 32 * 8));
  draw_chunks_slopes_and_tree(c, random);
  if (c.mask.chunk > 0 || c.tree) c.head_dim = std::min<std::int64_t>(c.head_dim, 192);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  if (c.page_size > 0 && c.page_size < 16) c.page_size = 16, c.capacity = (c.capacity + 15) / 16 * 16;
  if (c.page_size > 0) c.batch_index = false;
  if (c.new_len == 0 && random() % 3 == 0) {  // values of another head dim, beside that or alone
    if (random() % 2 == 0) c.mask.chunk = c.split_size = 0, c.slopes = c.tree = false;
    const std::int64_t most = c.mask.chunk > 0 || c.tree ? 192 : 256;
    c.value_dim = 8 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most / 8)) * 8;
    if (c.value_dim == c.head_dim) c.value_dim = c.head_dim < most ? c.head_dim + 8 : c.head_dim - 8;
  }
  return c;
}

}  // namespace tandem::test
