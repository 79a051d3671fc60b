// Attention of one query by its definition, whatever it sees.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/forward_case.h"

namespace tandem::test {

/// All in float64.
struct PlainRow {
  std::vector<double> o;
  double lse = 0;
};

/// softmax(cap(scale * q k) - slope * |position - key|) v, over the keys that `sees` lets it see.
inline PlainRow plain_row(const ForwardTensors& t, std::int64_t b, std::int64_t i, std::int64_t h,
                          double slope, const std::function<bool(std::int64_t)>& sees) {
  const ForwardCase& c = t.setup;
  const std::int64_t kv_head = h / (c.q_heads / c.kv_heads), position = i + c.k_len - c.q_len;
  PlainRow row{std::vector<double>(static_cast<std::size_t>(c.value_columns()))};
  double sum = 0;
  for (std::int64_t key = 0; key < c.k_len; ++key) {
    if (!sees(key)) continue;
    double score = 0;
    for (std::int64_t e = 0; e < c.head_dim; ++e) score += t.q.at(b, i, h, e) * t.k.at(b, key, kv_head, e);
    score *= 1 / std::sqrt(static_cast<double>(c.head_dim));
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    const double weight = std::exp(score - slope * static_cast<double>(std::abs(position - key)));
    sum += weight;
    for (std::int64_t e = 0; e < c.value_columns(); ++e)
      row.o[static_cast<std::size_t>(e)] += weight * t.v.at(b, key, kv_head, e);
  }
  for (double& x : row.o) x /= sum == 0 ? 1 : sum;
  row.lse = std::log(sum);
  return row;
}

}  // namespace tandem::test
