#include "cpu/sequence.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/quantize_problem.h"
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

/// A new token of sequence `b` to an 8-bit cache.
void append_eight_bit(const core::DecodeProblem& p, std::int64_t b, std::int64_t token,
                      const Sequence& sequence) {
  const std::int64_t position = sequence.length + token;
  const KeyPlace place = sequence.places[position];
  if (!exists(p.k_cache, place)) return;
  std::array<double, max_head_dim> buffer;
  const std::span row(buffer.data(), static_cast<std::size_t>(p.head_dim()));
  for (std::int64_t head = 0; head < p.kv_heads(); ++head) {
    const auto store_row = [&](const core::Tensor& cache, const core::Tensor& scales) {
      const EightBitRow own = eight_bit_row(p, scales, {b, place, head}, row);
      std::copy_n(own.elements, row.size(), core::row_of<core::E4m3>(cache, place.entry, place.row, head));
      if (p.scales.per_token) *core::CacheScales::at(scales, place.entry, place.row, head) = own.scale;
    };
    load_rotated(p.k_new, {b, token, head}, p.rotary, position, row);
    store_row(p.k_cache, p.scales.k);
    load_row<double>(p.v_new, b, token, head, row);
    store_row(p.v_cache, p.scales.v);
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
  std::array<double, max_head_dim> buffer;
  const std::span key(buffer.data(), static_cast<std::size_t>(d));
  for (std::int64_t head = 0; head < a.k_cache.shape[2]; ++head) {
    load_rotated(a.k_new, {entry, token, head}, a.rotary, position, key);
    for (std::int64_t e = 0; e < d; ++e) {
      store(a.k_cache, place.entry, place.row, head, e, key[static_cast<std::size_t>(e)]);
      store(a.v_cache, place.entry, place.row, head, e, load(a.v_new, entry, token, head, e));
    }
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

EightBitRow::EightBitRow(tandem_dtype dtype, std::span<const double> row, float given) : scale(given) {
  float values[max_head_dim], largest = 0;
  for (std::size_t e = 0; e < row.size(); ++e) {
    values[e] = rounded(dtype, row[e]);
    largest = std::max(largest, std::fabs(values[e]));
  }
  if (given == 0) scale = core::scale_for(largest);
  const float inverse = given == 0 ? core::inverse_of(scale) : 1.f / scale;
  for (std::size_t e = 0; e < row.size(); ++e) elements[e] = core::E4m3::from(values[e] * inverse);
}

EightBitRow eight_bit_row(const core::DecodeProblem& p, const core::Tensor& scales, const CachedToken& token,
                          std::span<const double> row) {
  return {p.dtype(), row, p.scales.per_token ? 0 : core::CacheScales::of(scales, token.sequence, token.head)};
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
