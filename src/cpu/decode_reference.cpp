// The oracle of decode: the forward's oracle over what each sequence has, gathered in plain loops.
#include <cstddef>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "cpu/decode.h"
#include "cpu/element.h"
#include "cpu/rows.h"
#include "cpu/sequence.h"

namespace tandem::cpu {
namespace {

/// A dense tensor of one sequence in fp32, which holds the values of every dtype.
struct Gathered {
  std::int64_t tokens, heads, head_dim;
  std::vector<float> values;

  Gathered(std::int64_t t, std::int64_t h, std::int64_t d)
      : tokens(t), heads(h), head_dim(d), values(static_cast<std::size_t>(t * h * d)) {}
  core::Tensor view() {
    return {values.data(), TANDEM_FP32, {1, tokens, heads, head_dim}, {0, heads * head_dim, head_dim, 1}};
  }
};

/// A new token's key or value as the cache will hold it; `make`: eight_bit_key or eight_bit_value.
void as_cached(const core::DecodeProblem& p, decltype(eight_bit_key)& make, const CachedToken& token,
               std::span<const double> row, std::span<float> result) {
  if (!p.eight_bit()) {
    for (std::size_t e = 0; e < row.size(); ++e) result[e] = rounded(p.dtype(), row[e]);
    return;
  }
  const EightBitRow own = make(p, token, row);
  for (std::size_t e = 0; e < row.size(); ++e) result[e] = own.elements[e] * own.scale;
}

/// One row of keys and values of the sequence: of the cache, or of what the step appends to it. Where queries
/// have a second part, values stand behind the keys too.
void gather_token(const core::DecodeProblem& p, std::int64_t b, std::int64_t token, Gathered& k,
                  Gathered& v) {
  const Sequence sequence(p, b);
  const KeyPlace place = sequence.places[token];
  if (!exists(p.k_cache, place)) return;  // counts as 0
  const auto d = static_cast<std::size_t>(p.head_dim()), dv = static_cast<std::size_t>(p.value_dim());
  std::vector<double> key(d), value(dv);
  for (std::int64_t head = 0; head < p.kv_heads(); ++head) {
    const std::span k_row(core::row_of<float>(k.view(), 0, token, head), d);
    const std::span v_row(core::row_of<float>(v.view(), 0, token, head), dv);
    const CachedToken cached{b, place, head};
    if (token < sequence.length) {
      load_cached(p, p.k_cache, p.scales.k, cached, k_row);
      load_cached(p, p.v_cache, p.scales.v, cached, v_row);
    } else {
      load_rotated(p.k_new, {b, token - sequence.length, head}, p.rotary, token, key);
      load_row<double>(p.v_new, b, token - sequence.length, head, value);
      as_cached(p, eight_bit_key, cached, key, k_row);
      as_cached(p, eight_bit_value, cached, value, v_row);
    }
    if (p.has_qv()) std::ranges::copy(v_row, k_row.data() + d);
  }
}

ReferenceValues sequence_values(const core::DecodeProblem& p, std::int64_t b) {
  const std::int64_t keys = Sequence(p, b).keys, d = p.head_dim();
  Gathered q(p.q_len(), p.q_heads(), p.key_columns()), k(keys, p.kv_heads(), p.key_columns()),
      v(keys, p.kv_heads(), p.value_dim());
  for (std::int64_t token = 0; token < keys; ++token) gather_token(p, b, token, k, v);
  std::vector<double> query(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < p.q_len(); ++i)
    for (std::int64_t h = 0; h < p.q_heads(); ++h) {
      load_query(p, {b, i, h}, keys - p.q_len() + i, query);
      for (std::int64_t e = 0; e < d; ++e) store(q.view(), 0, i, h, e, query[static_cast<std::size_t>(e)]);
      for (std::int64_t e = d; e < p.key_columns(); ++e)
        store(q.view(), 0, i, h, e, load(p.qv, b, i, h, e - d));
    }
  return reference_values({.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .o = {},
                           .lse = {},
                           .mask = p.mask,
                           .scale = p.scale,
                           .softcap = p.softcap,
                           .sinks = p.sinks,
                           .slopes = p.slopes.of_sequence(b),
                           .tree = p.tree == nullptr ? nullptr : p.tree + b * p.q_len()});
}

}  // namespace

ReferenceValues reference_decode_values(const core::DecodeProblem& p) {
  ReferenceValues all;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const ReferenceValues one = sequence_values(p, b);
    all.o.insert(all.o.end(), one.o.begin(), one.o.end());
    all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
  }
  return all;
}

void reference_decode(const core::DecodeProblem& p) {
  const ReferenceValues values = reference_decode_values(p);
  append(p);
  const double* o = values.o.data();
  const double* lse = values.lse.data();
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.q_len(); ++i)
      for (std::int64_t h = 0; h < p.q_heads(); ++h, ++lse) {
        for (std::int64_t e = 0; e < p.value_dim(); ++e) store(p.o, b, i, h, e, *o++);
        if (p.lse.data != nullptr) store(p.lse, b, i, h, 0, *lse);
      }
}

}  // namespace tandem::cpu
