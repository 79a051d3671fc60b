// Random batches of sequences of few and of many queries, for a listed variant of decode's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/listed_queries.h"
#include "decode/variant.h"
#include "tests/sim/runs.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {

/// Of queries: none, one, few, as many as are few, one more, many. At most `most`.
inline std::int64_t draw_queries(Random& random, std::int64_t few, std::int64_t most) {
  const std::int64_t lengths[] = {0,
                                  1,
                                  1,
                                  1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(few)),
                                  few,
                                  few + 1,
                                  1 + static_cast<std::int64_t>(random() % 150)};
  return std::min(lengths[random() % 7], most);
}

/// Of keys: none, about a block's end, or several blocks.
inline std::int64_t draw_keys(Random& random, int block) {
  const std::int64_t lengths[] = {
      0, block * static_cast<std::int64_t>(1 + random() % 3) - 1 + static_cast<std::int64_t>(random() % 3),
      1 + static_cast<std::int64_t>(random() % 20),
      1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(6 * block))};
  return lengths[random() % 8 == 0 ? 0 : 1 + random() % 3];
}

/// Whether it serves fixed splits only.
inline bool has_fixed_splits(const decode::DecodeVariant& variant) {
  return variant.head_dim <= 64 && variant.query_rows == 32 && variant.resident == 1;
}

/// Calls that may have more queries are served by tiles of 32 rows that have a multiprocessor for themselves,
/// at head dim 64 by those of which it has two; others by all others. Head dims 64 and 256 have one tile for
/// both.
inline bool draws_alone(const decode::DecodeVariant& variant, Random& random) {
  const bool either = random() % 4 == 0;
  if (variant.query_rows < 32) return true;
  if (variant.head_dim <= 64) return variant.resident > 1 && either;
  return variant.resident > 1 || (variant.head_dim >= 256 && either);
}

inline VarlenCase draw_mixed_case(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed);
  VarlenCase drawn = draw_varlen_case(random, {64, variant.block_n});  // all but lengths
  VarlenCase c = drawn;
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  const std::int64_t group = std::int64_t{1} << random() % 4;
  c.q_heads = c.kv_heads * group;
  const std::int64_t few = core::few_queries(group);
  const bool alone = draws_alone(variant, random);
  const std::int64_t most = alone ? std::max<std::int64_t>(1, variant.query_rows / group) : 1000;
  const std::uint64_t sequences = random() % 6 == 0 ? 33 + random() % 40 : 1 + random() % 6;
  c.q_lens.clear(), c.k_lens.clear();
  for (std::uint64_t i = 0; i < sequences; ++i) {
    c.q_lens.push_back(draw_queries(random, few, most));
    c.k_lens.push_back(sequences > 6 ? 1 + static_cast<std::int64_t>(random() % 150)
                                     : draw_keys(random, variant.block_n));
  }
  if (alone) c.q_lens.front() = most;  // so that this tile serves
  if (!alone) {
    c.q_lens.front() = few + 1 + static_cast<std::int64_t>(random() % 100);
    c.q_packed = true;
    if (c.keys == KeyLayout::packed) c.keys = KeyLayout::paged;
  }
  for (std::size_t i = 0; i < c.k_lens.size(); ++i)
    if (c.q_lens[i] > few) c.k_lens[i] = std::max<std::int64_t>(1, c.k_lens[i]);
  c.new_lens.clear(), c.padding.clear();
  c.batch_index = c.keys == KeyLayout::entries && random() % 3 == 0;
  for (std::size_t i = 0; c.keys == KeyLayout::entries && drawn.seed % 3 == 0 && i < c.k_lens.size(); ++i)
    c.padding.push_back(static_cast<std::int64_t>(random() % 40));
  c.new_packed = true;
  for (std::size_t i = 0; c.keys != KeyLayout::packed && drawn.seed % 2 == 0 && i < c.k_lens.size(); ++i)
    c.new_lens.push_back(std::min(c.q_lens[i], c.k_lens[i]));
  c.mask.chunk = 0, c.slopes = c.tree = false;
  if (random() % 3 == 0) c.softcap = 1.f + static_cast<float>(random() % 30);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  if (has_fixed_splits(variant) || (variant.resident == 1 && random() % 3 == 0))
    c.split_size = std::int64_t{64} << random() % 3;
  return c;
}

}  // namespace tandem::test
