// Random decoding steps whose sequences share prefixes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "decode/variant.h"
#include "tests/sim/runs.h"
#include "tests/support/decode_case.h"

namespace tandem::test {

/// Groups of 1 to n sequences, and sequences in none before, between and behind them. Prefixes end anywhere:
/// within pages and blocks, at a sequence's end, beyond it, before the first key.
inline void draw_prefixes(DecodeCase& c, Random& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(std::max<std::int64_t>(1, n)));
  };
  const auto batch = static_cast<std::int32_t>(c.batch());
  std::int32_t at = random() % 3 == 0 ? below(batch) : 0;
  c.prefix_sequences = {at}, c.prefix_lengths.clear();
  const std::int32_t groups = random() % 3 == 0 ? 1 : 1 + below(batch);
  for (std::int32_t g = 0; g < groups; ++g) {
    at += random() % 6 == 0 ? 0 : below(batch - at + 1);
    if (groups == 1 && random() % 2 == 0) at = batch;
    c.prefix_sequences.push_back(at);
    c.prefix_lengths.push_back(below(c.capacity + 20));
    if (random() % 8 == 0) c.prefix_lengths.back() = -5;
  }
}

/// Lengths that mostly are beyond a prefix: the longest with a few tokens more or fewer.
inline void draw_lengths(DecodeCase& c, Random& random) {
  const std::int64_t most = c.capacity - c.new_len;
  const auto usual = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  for (std::int32_t& length : c.lengths) {
    const std::uint64_t kind = random() % 8;
    std::int64_t own = usual;
    if (kind == 0) own = 0;
    if (kind == 1) own = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
    if (kind >= 4) own += static_cast<std::int64_t>(random() % 90);
    length = static_cast<std::int32_t>(std::min(own, most));
  }
}

/// A step that the variant's kernel serves.
inline DecodeCase draw_prefix_case(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed + 21);
  const auto dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  std::int64_t head_dim = variant.head_dim;
  if (random() % 3 == 0) head_dim -= 8 * static_cast<std::int64_t>(random() % (variant.head_dim / 16));
  DecodeCase c = random_decode_case(seed, dtype, head_dim);
  c.nearly_normal = true;
  c.split_size = 0;
  c.mask.left = core::Mask::unlimited;
  if (random() % 2 == 0) c.mask.right = static_cast<std::int64_t>(random() % 3);
  c.q_len = random() % 2 == 0 ? 1 : std::min<std::int64_t>(c.q_len, 4);
  c.kv_heads = std::min<std::int64_t>(c.kv_heads, 2);
  // Two sequences' queries have to have room in as many tiles as one's need.
  const std::int64_t most_group = variant.query_rows / (2 * c.q_len);
  c.q_heads = c.kv_heads * (1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most_group)));
  const bool wide = random() % 3 == 0;
  if (wide) c.q_heads = c.kv_heads * most_group;
  const bool many = random() % 4 == 0;
  c.capacity = (many ? 200 : 300 + static_cast<std::int64_t>(random() % 300)) / 64 * 64;
  if (c.page_size > 64) c.page_size = 64;
  c.lengths.resize(many ? 34 + random() % 20 : 2 + random() % 8);
  if (many) c.kv_heads = 1, c.q_heads = std::min<std::int64_t>(c.q_heads, 2);
  c.new_len = std::min<std::int64_t>(c.new_len, 3);
  draw_lengths(c, random);
  draw_prefixes(c, random);
  if (wide)  // more queries than a tile has room for
    c.prefix_sequences = {0, static_cast<std::int32_t>(c.batch())}, c.prefix_lengths = {c.lengths[0]};
  // Keys are appended and queries rotated by a kernel ahead, which has no such pages.
  const bool ahead = c.new_len > 0 || c.rotary_dim > 0;
  if (ahead && c.page_size > 0) c.batch_index = false, c.page_size = std::max<std::int64_t>(c.page_size, 16);
  c.q.order = {0, 1, 2};
  if (c.rotary_dim == 0 && c.q_len > 1) c.q = {};
  return c;
}

}  // namespace tandem::test
