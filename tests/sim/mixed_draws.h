// Random batches of sequences of few and of many queries, for a variant of decode's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "apps/sim/decode_sim.h"
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

/// Those that serve lists.
inline std::vector<decode::DecodeVariant> listing_variants() {
  std::vector<decode::DecodeVariant> found = sim::decode_variants(decode::Queries::listed);
  std::erase_if(found, [](const decode::DecodeVariant& v) { return !v.narrows_tiles() || !v.is_alone(); });
  return found;
}

/// Heads, lengths and operands for the variant; of queries at most so many, or, where `most` is 0, as many as
/// are few.
inline VarlenCase draw_batch_for(const decode::DecodeVariant& variant, Random& random, std::int64_t most) {
  VarlenCase c = draw_varlen_case(random, {64, variant.block_n});
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim - 8 * static_cast<std::int64_t>(random() % 2 * (random() % 4));
  const std::int64_t group = std::int64_t{1} << random() % 4;
  c.q_heads = c.kv_heads * group;
  const std::int64_t few = core::few_queries(group);
  const std::uint64_t sequences = random() % 6 == 0 ? 33 + random() % 40 : 1 + random() % 6;
  c.q_lens.clear(), c.k_lens.clear(), c.new_lens.clear(), c.padding.clear();
  for (std::uint64_t i = 0; i < sequences; ++i) {
    c.q_lens.push_back(draw_queries(random, few, most > 0 ? most : few));
    c.k_lens.push_back(sequences > 6 ? 1 + static_cast<std::int64_t>(random() % 150)
                                     : draw_keys(random, variant.block_n));
  }
  c.batch_index = false, c.new_packed = true;
  c.mask.chunk = 0, c.slopes = c.tree = false;
  if (random() % 3 == 0) c.softcap = 1.f + static_cast<float>(random() % 30);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  return c;
}

/// A call that is a step of the variant, which finds sequences without a list.
inline VarlenCase draw_packed_step(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed);
  VarlenCase c = draw_batch_for(variant, random, 0);
  const std::int64_t group = c.q_heads / c.kv_heads;
  const std::int64_t room = random() % 3 == 0 ? core::few_queries(group)  // maybe several tiles
                                              : std::max<std::int64_t>(1, variant.query_rows / group);
  const auto most = 1 + random() % static_cast<std::uint64_t>(room);
  for (std::int64_t& queries : c.q_lens) queries = std::min(queries, static_cast<std::int64_t>(most));
  // One has as many, and enough keys that the rounding of a few probabilities is not all that there is.
  const std::size_t largest = random() % c.q_lens.size();
  c.q_lens[largest] = static_cast<std::int64_t>(most);
  c.k_lens[largest] = std::max<std::int64_t>(64, c.k_lens[largest]);
  c.q_packed = true;
  if (c.keys == KeyLayout::packed) c.keys = random() % 2 == 0 ? KeyLayout::paged : KeyLayout::entries;
  // Half of them behind a kernel that appends, rotates, or both.
  if (random() % 2 == 0) c.rotary_dim = 0;
  for (std::size_t i = 0, appends = random() % 2; appends == 1 && i < c.k_lens.size(); ++i)
    c.new_lens.push_back(std::min(c.q_lens[i], c.k_lens[i]));
  if (variant.is_alone() && random() % 3 == 0) c.split_size = std::int64_t{64} << random() % 3;
  return c;
}

inline VarlenCase draw_mixed_case(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed);
  const bool alone = random() % 2 == 0;
  VarlenCase c = draw_batch_for(variant, random, alone ? 0 : 1000);
  const std::int64_t few = core::few_queries(c.q_heads / c.kv_heads);
  if (!alone) {
    c.q_lens.front() = few + 1 + static_cast<std::int64_t>(random() % 100);
    c.q_packed = true;
    if (c.keys == KeyLayout::packed) c.keys = KeyLayout::paged;
  }
  for (std::size_t i = 0; i < c.k_lens.size(); ++i)
    if (c.q_lens[i] > few) c.k_lens[i] = std::max<std::int64_t>(1, c.k_lens[i]);
  if (alone && c.keys == KeyLayout::paged) c.keys = KeyLayout::entries;  // else it is a step
  c.batch_index = c.keys == KeyLayout::entries && random() % 2 == 0;
  const bool pads = alone && !c.batch_index ? true : c.seed % 3 != 0;
  for (std::size_t i = 0; c.keys == KeyLayout::entries && pads && i < c.k_lens.size(); ++i)
    c.padding.push_back(static_cast<std::int64_t>(random() % 40));
  for (std::size_t i = 0; c.keys != KeyLayout::packed && c.seed % 2 == 0 && i < c.k_lens.size(); ++i)
    c.new_lens.push_back(std::min(c.q_lens[i], c.k_lens[i]));
  if (random() % 3 == 0) c.split_size = std::int64_t{64} << random() % 3;
  return c;
}

}  // namespace tandem::test
