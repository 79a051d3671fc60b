#include "cpu/decode_by_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "cpu/element.h"
#include "cpu/parallel.h"
#include "cpu/sequence.h"

namespace tandem::cpu {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// The rows of one key/value head of a sequence: queries times heads of the group, in a thread's scratch.
struct Rows {
  const core::DecodeProblem& p;
  float *q, *o, *top, *sum;  ///< rows x key columns, x dv; of each row the largest score and the sum above it

  static std::int64_t count(const core::DecodeProblem& p) { return p.q_len() * p.group(); }
  static std::size_t floats(const core::DecodeProblem& p) {
    return whole_blocks(static_cast<std::size_t>(count(p) * (p.key_columns() + p.value_dim() + 2)));
  }
  Rows(const core::DecodeProblem& problem, float* memory)
      : p(problem),
        q(memory),
        o(q + count(p) * p.key_columns()),
        top(o + count(p) * p.value_dim()),
        sum(top + count(p)) {}

  std::int64_t token(std::int64_t row) const { return row / p.group(); }
  std::int64_t head(std::int64_t row, std::int64_t kv_head) const {
    return kv_head * p.group() + row % p.group();
  }

  void start(const Sequence& sequence, std::int64_t b, std::int64_t kv_head) const {
    const std::int64_t d = p.head_dim(), both = p.key_columns();
    std::array<double, most_columns> buffer;
    for (std::int64_t r = 0; r < count(p); ++r) {
      const std::span query(buffer.data(), static_cast<std::size_t>(d));
      load_query(p, {b, token(r), head(r, kv_head)}, sequence.keys - p.q_len() + token(r), query);
      for (std::int64_t e = 0; e < d; ++e)
        q[r * both + e] = static_cast<float>(query[static_cast<std::size_t>(e)]);
      for (std::int64_t e = d; e < both; ++e)
        q[r * both + e] = static_cast<float>(load(p.qv, b, token(r), head(r, kv_head), e - d));
    }
    std::fill_n(o, count(p) * p.value_dim(), 0.f);
    std::fill_n(top, count(p), minus_infinity);
    std::fill_n(sum, count(p), 0.f);
  }

  /// `bias`: what is taken off the score.
  void add(std::int64_t r, const float* key, const float* value, float bias) const {
    const std::int64_t d = p.head_dim(), dv = p.value_dim();
    const float* query = q + r * p.key_columns();
    float dot = 0;
    for (std::int64_t e = 0; e < d; ++e) dot += query[e] * key[e];
    for (std::int64_t e = 0; p.has_qv() && e < dv; ++e) dot += query[d + e] * value[e];
    // Neither a query times the scale nor a score before its cap has to fit fp32.
    float score = p.softcap > 0 ? p.softcap * std::tanh(dot * (p.scale / p.softcap)) : dot * p.scale;
    score -= bias;
    if (score == minus_infinity) return;
    if (!(score <= top[r])) {  // NaN too
      const float factor = std::exp(top[r] - score);
      for (std::int64_t e = 0; e < dv; ++e) o[r * dv + e] *= factor;
      sum[r] *= factor;
      top[r] = score;
    }
    const float weight = std::exp(score - top[r]);
    for (std::int64_t e = 0; e < dv; ++e) o[r * dv + e] += weight * value[e];
    sum[r] += weight;
  }

  void finish(std::int64_t r, std::int64_t b, std::int64_t kv_head) const {
    const std::int64_t dv = p.value_dim(), own = head(r, kv_head);
    const float sink = p.sinks == nullptr ? minus_infinity : p.sinks[own], both = std::max(top[r], sink);
    const float keys = top[r] == minus_infinity ? 0.f : std::exp(top[r] - both);
    const float total = sum[r] * keys + (sink == minus_infinity ? 0.f : std::exp(sink - both));
    const float factor = total == 0 ? 0 : keys / total;
    for (std::int64_t e = 0; e < dv; ++e) store(p.o, b, token(r), own, e, o[r * dv + e] * factor);
    if (p.lse.data != nullptr)
      store(p.lse, b, token(r), own, 0, total == 0 ? minus_infinity : both + std::log(total));
  }
};

void attend(const core::DecodeProblem& p, std::int64_t b, std::int64_t kv_head, const Rows& rows) {
  const Sequence sequence(p, b);
  rows.start(sequence, b, kv_head);
  const auto d = static_cast<std::size_t>(p.head_dim()), dv = static_cast<std::size_t>(p.value_dim());
  std::array<float, most_columns> key, value;
  const auto first = p.mask.visible_keys(0, p.q_len(), sequence.keys);
  const auto last = p.mask.visible_keys(p.q_len() - 1, p.q_len(), sequence.keys);
  for (std::int64_t at = first.begin; at < last.end; ++at) {
    const CachedToken token{b, sequence.places[at], kv_head};
    load_cached(p, p.k_cache, p.scales.k, token, {key.data(), d});
    load_cached(p, p.v_cache, p.scales.v, token, {value.data(), dv});
    for (std::int64_t r = 0; r < Rows::count(p); ++r) {
      const auto seen = p.mask.visible_keys(rows.token(r), p.q_len(), sequence.keys);
      if (at < seen.begin || at >= seen.end) continue;
      const std::int64_t first_query = sequence.keys - p.q_len(), query = rows.token(r);
      if (p.tree != nullptr && !core::word_shows(p.tree[b * p.q_len() + query], at - first_query)) continue;
      const std::int64_t distance = first_query + query - at;
      const float slope = p.slopes.given() ? p.slopes.of(b, rows.head(r, kv_head)) : 0.f;
      rows.add(r, key.data(), value.data(), slope * std::fabs(static_cast<float>(distance)));
    }
  }
  for (std::int64_t r = 0; r < Rows::count(p); ++r) rows.finish(r, b, kv_head);
}

}  // namespace

std::size_t decode_by_keys_workspace(const core::DecodeProblem& p) {
  return static_cast<std::size_t>(thread_count()) * Rows::floats(p) * sizeof(float);
}

void decode_by_keys(const core::DecodeProblem& p, void* workspace) {
  for_each_task(p.batch() * p.kv_heads(), [&](std::int64_t task, int thread) {
    const Rows rows(p, static_cast<float*>(workspace) + static_cast<std::size_t>(thread) * Rows::floats(p));
    attend(p, task / p.kv_heads(), task % p.kv_heads(), rows);
  });
}

}  // namespace tandem::cpu
