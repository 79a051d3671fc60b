#include "cpu/sequence.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/quantize_problem.h"
#include "cpu/hadamard.h"
#include "cpu/rows.h"

namespace tandem::cpu {
namespace {

/// Pairs of columns become x cos - y sin, x sin + y cos.
void turn(const core::Rotary& rotary, std::int64_t position, std::span<double> row) {
  const std::int64_t half = rotary.dim / 2,
                     nearest = std::clamp<std::int64_t>(position, 0, rotary.positions - 1);
  const auto value = [&](const void* table, std::int64_t pair) {
    const core::Tensor angles{const_cast<void*>(table), rotary.dtype, {}, {0, 0, half, 1}};
    return load(angles, 0, 0, nearest, pair);
  };
  for (std::int64_t pair = 0; pair < half; ++pair) {
    double& x = row[static_cast<std::size_t>(rotary.interleaved ? 2 * pair : pair)];
    double& y = row[static_cast<std::size_t>(rotary.interleaved ? 2 * pair + 1 : pair + half)];
    const double cos = value(rotary.cos, pair), sin = value(rotary.sin, pair), old_x = x;
    x = old_x * cos - y * sin;
    y = old_x * sin + y * cos;
  }
}

/// A row's elements by a scale that is given or, where tokens have their own, found.
EightBitRow eight_bit_row(const core::DecodeProblem& p, const core::Tensor& scales, const CachedToken& token,
                          std::span<const float> row) {
  const tandem_dtype dtype = p.k_cache.dtype;
  EightBitRow made;
  if (p.scales.per_token) {
    float largest = 0;
    for (const float x : row) largest = std::fmax(largest, std::fabs(x));
    made.scale = dtype == TANDEM_INT8 ? core::int8_scale_for(largest) : core::scale_for(largest);
  } else {
    made.scale = core::CacheScales::of(scales, token.sequence, token.head);
  }
  const float inverse = 1.f / made.scale;
  for (std::size_t e = 0; e < row.size(); ++e) made.elements[e] = rounded(dtype, row[e] * inverse);
  return made;
}

/// A new token of sequence `b` to an 8-bit cache.
void append_eight_bit(const core::DecodeProblem& p, std::int64_t b, std::int64_t token,
                      const Sequence& sequence) {
  const std::int64_t position = sequence.length + token;
  const KeyPlace place = sequence.places[position];
  if (!exists(p.k_cache, place)) return;
  std::array<double, most_columns> buffer;
  const std::span row(buffer.data(), static_cast<std::size_t>(p.head_dim()));
  for (std::int64_t head = 0; head < p.kv_heads(); ++head) {
    const auto store_row = [&](const core::Tensor& cache, const core::Tensor& scales,
                               const EightBitRow& own) {
      for (std::int64_t e = 0; e < p.head_dim(); ++e)
        store(cache, place.entry, place.row, head, e, own.elements[e]);
      if (p.scales.per_token) *core::CacheScales::at(scales, place.entry, place.row, head) = own.scale;
    };
    const CachedToken cached{b, place, head};
    load_rotated(p.k_new, {b, token, head}, p.rotary, position, row);
    store_row(p.k_cache, p.scales.k, eight_bit_key(p, cached, row));
    load_row<double>(p.v_new, b, token, head, row);
    store_row(p.v_cache, p.scales.v, eight_bit_value(p, cached, row));
  }
}

}  // namespace

Sequence::Sequence(const core::DecodeProblem& p, std::int64_t batch)
    : length(std::clamp<std::int64_t>(p.lengths[batch], 0, p.capacity() - p.new_len())),
      keys(length + p.new_len()),
      places{nullptr, p.page_size(), p.batch_index == nullptr ? batch : p.batch_index[batch]} {
  if (p.paged()) places.pages = p.page_table + places.entry * p.page_table_stride;
}

void load_rotated(const core::Tensor& tensor, const std::int64_t (&at)[3], const core::Rotary& rotary,
                  std::int64_t position, std::span<double> row) {
  load_row(tensor, at[0], at[1], at[2], row);
  if (rotary.cos != nullptr) turn(rotary, position, row);
}

void append_token(const Appended& a, std::int64_t entry, std::int64_t token, const KeyPlace& place,
                  std::int64_t position) {
  if (!exists(a.k_cache, place)) return;
  const std::int64_t d = a.k_cache.shape[3];
  std::array<double, most_columns> buffer;
  const std::span key(buffer.data(), static_cast<std::size_t>(d));
  for (std::int64_t head = 0; head < a.k_cache.shape[2]; ++head) {
    load_rotated(a.k_new, {entry, token, head}, a.rotary, position, key);
    for (std::int64_t e = 0; e < d; ++e)
      store(a.k_cache, place.entry, place.row, head, e, key[static_cast<std::size_t>(e)]);
    for (std::int64_t e = 0; e < a.v_cache.shape[3]; ++e)
      store(a.v_cache, place.entry, place.row, head, e, load(a.v_new, entry, token, head, e));
  }
}

void load_cached(const core::DecodeProblem& p, const core::Tensor& cache, const core::Tensor& scales,
                 const CachedToken& token, std::span<float> row) {
  const auto [entry, at] = token.place;
  if (!exists(cache, token.place)) {
    std::ranges::fill(row, 0.f);
    return;
  }
  load_row(cache, entry, at, token.head, row);
  if (!p.eight_bit()) return;
  scale_row(p.scales.per_token ? *core::CacheScales::at(scales, entry, at, token.head)
                               : core::CacheScales::of(scales, token.sequence, token.head),
            row);
}

EightBitRow eight_bit_key(const core::DecodeProblem& p, const CachedToken& token,
                          std::span<const double> row) {
  float key[most_columns];
  for (std::size_t e = 0; e < row.size(); ++e) key[e] = rounded(p.dtype(), row[e]);
  if (p.scales.hadamard) multiply_by_hadamard(std::span(key, row.size()), p.scales.seed);
  return eight_bit_row(p, p.scales.k, token, {key, row.size()});
}

EightBitRow eight_bit_value(const core::DecodeProblem& p, const CachedToken& token,
                            std::span<const double> row) {
  float value[most_columns];
  for (std::size_t e = 0; e < row.size(); ++e) value[e] = rounded(p.dtype(), row[e]);
  return eight_bit_row(p, p.scales.v, token, {value, row.size()});
}

void load_query(const core::DecodeProblem& p, const std::int64_t (&at)[3], std::int64_t position,
                std::span<double> row) {
  load_rotated(p.q, at, p.rotary, position, row);
  if (p.scales.hadamard) multiply_by_hadamard(row, p.scales.seed);
}

void append(const core::DecodeProblem& p) {
  const Appended appended{p.k_new, p.v_new, p.k_cache, p.v_cache, p.rotary};
  for (std::int64_t b = 0; b < p.batch() && p.new_len() > 0; ++b) {
    const Sequence sequence(p, b);
    for (std::int64_t token = 0; token < p.new_len(); ++token) {
      const std::int64_t position = sequence.length + token;
      if (p.eight_bit()) {
        append_eight_bit(p, b, token, sequence);
      } else {
        append_token(appended, b, token, sequence.places[position], position);
      }
    }
  }
}

}  // namespace tandem::cpu
