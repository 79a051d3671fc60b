// Random steps for a decode variant of the software Hopper.
#pragma once

#include <algorithm>
#include <cstdint>

#include "apps/sim/decode_sim.h"
#include "decode/variant.h"
#include "tests/sim/runs.h"
#include "tests/support/decode_case.h"

namespace tandem::test {

/// What a test's draws are of, in turn.
enum class StepKind { many_splits, any, several_row_tiles, many_sequences };
inline StepKind step_kind_of(std::uint64_t seed) { return static_cast<StepKind>(number_of(seed) % 4); }

/// Brings some lengths to where keys end at a block's edge or next to it, or new tokens cross one; and one
/// beyond the capacity.
inline void draw_edges(DecodeCase& c, int block, Random& random) {
  for (std::int32_t& length : c.lengths) {
    const std::int64_t edge = block * static_cast<std::int64_t>(1 + random() % 3);
    const std::int64_t before =
        c.new_len > 1 && random() % 2 == 0
            ? 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.new_len - 1))
            : c.new_len + 1 - static_cast<std::int64_t>(random() % 3);
    if (random() % 2 == 0 && edge - before + c.new_len <= c.capacity)
      length = static_cast<std::int32_t>(std::max<std::int64_t>(0, edge - before));
  }
  if (random() % 8 == 0) c.lengths[0] = static_cast<std::int32_t>(c.capacity + 5);
}

/// More sequences than are looked at together, most of them short; for some variants more than 128.
inline void make_many_sequences(DecodeCase& c, int block, Random& random) {
  const std::uint64_t most = random() % 4 == 0 ? 140 : 70;
  c.q_heads = std::min<std::int64_t>(c.q_heads / c.kv_heads, 2), c.kv_heads = 1;
  c.lengths.resize(most - random() % 10);
  for (std::int32_t& length : c.lengths) length = static_cast<std::int32_t>(random() % 4);
  c.lengths[random() % c.lengths.size()] =
      static_cast<std::int32_t>(std::min<std::int64_t>(c.capacity - c.new_len, 2 * block + 7));
}

/// One long sequence, of more splits than are merged at once.
inline void make_many_splits(DecodeCase& c, Random& random) {
  const std::int64_t unit = std::max<std::int64_t>(c.page_size, 1);
  c.q_heads = std::min<std::int64_t>(c.q_heads / c.kv_heads, 4), c.kv_heads = 1;
  c.split_size = random() % 2 == 0 ? 64 : 0;  // or so many blocks of keys as there are multiprocessors
  c.lengths = {static_cast<std::int32_t>((c.split_size > 0 ? 1100 : 2200) + random() % 400)};
  c.capacity = (c.lengths[0] + c.new_len + 2 * unit) / unit * unit;
  if (c.mask.left < 1000) c.mask.left += 1000;
}

/// A group whose rows need one row tile and a bit of the next, with a mask that mostly bites.
inline void make_several_row_tiles(DecodeCase& c, int columns, Random& random) {
  if (c.q_len == 1) c.q_len = static_cast<std::int64_t>(2 + random() % 3);
  const auto bit = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(columns / 4));
  c.q_heads = c.kv_heads * ((columns + bit + c.q_len - 1) / c.q_len);
  if (c.mask.is_full()) c.mask = core::Mask::causal();
}

/// Heads of a group: one, as many as fill a row tile with the queries, any number up to that.
inline std::int64_t draw_group(int columns, std::int64_t q_len, Random& random) {
  const std::int64_t full = std::max<std::int64_t>(1, columns / q_len);
  const std::uint64_t kind = random() % 4;
  if (kind == 0) return 1;
  if (kind == 1) return full;
  return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(full));
}

/// Whether a step of the variant's is over keys times a Hadamard matrix: of e4m3 always, where the kernel is
/// for that.
inline bool draw_hadamard(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed + 9);
  return variant.hadamard && (variant.element == decode::Element::e4m3 || random() % 2 == 0);
}

/// The variant's own, or one that it pads; with a Hadamard matrix powers of two.
inline std::int64_t draw_head_dim(const decode::DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed + 7);
  if (draw_hadamard(variant, seed))
    return variant.head_dim > 64 || random() % 2 == 0 ? variant.head_dim : std::int64_t{8} << random() % 3;
  const std::uint64_t smaller = variant.head_dim / 16;  // multiples of 8 down to half of it
  return variant.head_dim - (random() % 3 == 0 ? 8 * static_cast<std::int64_t>(random() % smaller) : 0);
}

/// Of values in keys of that many columns: the variant's own, or fewer.
inline std::int64_t draw_value_dim(const decode::DecodeVariant& variant, std::int64_t head_dim,
                                   Random& random) {
  const std::int64_t most = std::min<std::int64_t>(variant.value_dim, head_dim - 8);
  return random() % 2 == 0 ? most : most - 8 * static_cast<std::int64_t>(random() % 16);
}

/// An 8-bit cache of the variant's elements, with scales of its kind and strides that are multiples of 16
/// bytes.
inline void draw_scales_for(const decode::DecodeVariant& variant, DecodeCase& c, Random& random) {
  draw_eight_bit_cache(c, random);
  if (variant.token_scales != c.eight_bit.per_token)
    c.eight_bit = {.on = true, .per_token = variant.token_scales, .by_head = true};
  c.eight_bit.int8 = variant.element == decode::Element::int8;
  const int over = static_cast<int>(c.head_dim % 16);  // a row and its gap
  c.cache.row_gap = static_cast<int>(random() % 3) * 16 + (over > 0 ? 16 - over : 0);
}

/// A step that the variant serves.
inline DecodeCase draw_case(const decode::DecodeVariant& variant, std::uint64_t seed) {
  const auto dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  DecodeCase c = random_decode_case(
      seed, dtype,
      variant.two_part_keys ? variant.head_dim - variant.value_dim : draw_head_dim(variant, seed));
  c.nearly_normal = true;
  Random random(seed + 77);
  c.kv_heads = std::min<std::int64_t>(c.kv_heads, 2);
  c.q_heads = c.kv_heads * draw_group(variant.query_rows, c.q_len, random);
  if (variant.algorithm == decode::Algorithm::plain && c.lengths.size() > 3) c.lengths.resize(3);
  draw_edges(c, variant.block_n, random);
  if (random() % 3 == 0) {
    const std::int64_t longest =
        *std::ranges::max_element(c.lengths) + c.new_len + 1;  // lengths may be negative
    c.mask = {
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(std::max<std::int64_t>(1, longest))),
        static_cast<std::int64_t>(random() % 3)};
  }
  const StepKind kind = step_kind_of(seed);
  if (kind == StepKind::several_row_tiles) make_several_row_tiles(c, variant.query_rows, random);
  if (kind == StepKind::many_sequences) make_many_sequences(c, variant.block_n, random);
  if (kind == StepKind::many_splits) make_many_splits(c, random);
  if (!variant.has_fixed_splits()) c.split_size = 0;
  if (variant.eight_bit()) draw_scales_for(variant, c, random);
  c.eight_bit.hadamard = draw_hadamard(variant, seed);
  if (variant.two_part_keys) give_second_part(c, variant.value_dim);
  if (variant.values_in_keys() && !variant.two_part_keys)
    put_values_into_keys(c, draw_value_dim(variant, c.head_dim, random));
  return c;
}

/// On so many multiprocessors the step runs; 0: on any number.
inline int multiprocessors_of(std::uint64_t seed) {
  return step_kind_of(seed) == StepKind::many_splits ? 18 : 0;
}

}  // namespace tandem::test
