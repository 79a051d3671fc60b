#include "tests/fuzz/oracle_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::fuzz {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Trees are of sequences of at most so many queries.
constexpr std::int64_t tree_queries = 64;

bool tree_hides(const Sequence& all, std::int64_t query, std::int64_t key) {
  if (all.tree == nullptr || all.queries > tree_queries || all.tree[query] == 0) return false;
  const std::int64_t bit = key - (all.keys - all.queries);
  return bit >= 0 && (all.tree[query] >> bit & 1) == 0;
}

void widen(double& reach, double magnitude) {
  if (std::isfinite(magnitude)) reach = std::max(reach, magnitude);
}

struct Score {
  double value, reach;
};

void add_products(Score& score, const Numbers& q, const Numbers& k) {
  for (std::size_t e = 0; e < k.size(); ++e) score.value += q[e] * k[e], score.reach += std::abs(q[e] * k[e]);
}

Score score_of(const Sequence& all, const Numbers& q, std::int64_t query, std::int64_t head,
               std::int64_t key) {
  const double scale = all.scale > 0 ? all.scale : 1 / std::sqrt(static_cast<double>(all.head_dim));
  Score score{0, 0};
  add_products(score, q, all.k(key, head / all.group));
  if (all.qv) add_products(score, all.qv(query, head), all.v(key, head / all.group));
  score.value *= scale, score.reach *= scale;
  if (all.softcap > 0) score.value = all.softcap * std::tanh(score.value / all.softcap);
  if (all.slopes != nullptr) {
    const double bias = static_cast<double>(all.slopes[head]) *
                        std::abs(static_cast<double>(query + all.keys - all.queries - key));
    score.value -= bias, score.reach += std::abs(bias);
  }
  return score;
}

}  // namespace

Sequence entry_of(const tandem_tensor& q, const tandem_tensor& k, const tandem_tensor& v, std::int64_t b) {
  const auto read = [b](const tandem_tensor& t) {
    return [&t, b](std::int64_t token, std::int64_t head) { return read_row(t, b, token, head); };
  };
  Sequence entry;
  entry.queries = q.shape[1], entry.keys = k.shape[1];
  entry.head_dim = q.shape[3], entry.columns = v.shape[3];
  entry.group = k.shape[2] == 0 ? 1 : q.shape[2] / k.shape[2];
  entry.q = read(q), entry.k = read(k), entry.v = read(v);
  return entry;
}

Keys keys_of(const tandem_mask* mask, std::int64_t q_len, std::int64_t k_len, std::int64_t query) {
  const Wide position = Wide{query} + k_len - q_len;
  Wide begin = 0, end = k_len;
  if (mask != nullptr && mask->kind == TANDEM_MASK_CAUSAL) end = position + 1;
  if (mask != nullptr && mask->kind == TANDEM_MASK_WINDOW) {
    if (mask->window_left != TANDEM_UNLIMITED) begin = position - mask->window_left;
    if (mask->window_right != TANDEM_UNLIMITED) end = position + mask->window_right + 1;
  }
  if (mask != nullptr && mask->chunk != 0) {
    if (position < 0) return {0, 0};
    const Wide first = position / mask->chunk * mask->chunk;
    begin = std::max(begin, first), end = std::min(end, first + mask->chunk);
  }
  begin = std::clamp(begin, Wide{0}, Wide{k_len});
  end = std::clamp(end, begin, Wide{k_len});
  return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)};
}

Result attend(const Sequence& all, std::int64_t query, std::int64_t head) {
  const Keys band = keys_of(all.mask, all.queries, all.keys, query);
  const Numbers q = all.q(query, head);
  const double sink = all.sinks == nullptr ? -infinity : static_cast<double>(all.sinks[head]);
  Result result{Numbers(static_cast<std::size_t>(all.columns)), -infinity, 0, 0};
  std::vector<std::int64_t> keys;
  Numbers weights;
  double highest = sink;
  for (std::int64_t key = band.begin; key < band.end; ++key) {
    if (tree_hides(all, query, key) || (all.lists && !all.lists(query, head, key))) continue;
    const Score score = score_of(all, q, query, head, key);
    keys.push_back(key), weights.push_back(score.value);
    widen(result.score_reach, score.reach);
    if (!std::isnan(highest))
      highest = std::isnan(score.value) ? score.value : std::max(highest, score.value);
  }
  if (highest == -infinity) return result;
  double sum = std::exp(sink - highest);
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const Numbers v = all.v(keys[n], head / all.group);
    for (std::size_t e = 0; e < v.size(); ++e) {
      result.o[e] += weights[n] / sum * v[e];
      widen(result.value_reach, std::abs(v[e]));
    }
  }
  result.lse = highest + std::log(sum);
  return result;
}

}  // namespace tandem::fuzz
