// The float64 oracle. Every line is the definition; nothing here is clever.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/forward.h"
#include "cpu/parallel.h"
#include "cpu/rows.h"

namespace tandem::cpu {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Scratch = ReferenceMemory::Part;

/// Of the query in `scratch`, a token of head `h`.
double score(const core::ForwardProblem& p, std::int64_t b, std::int64_t h, std::int64_t key,
             Scratch& scratch) {
  load_key<double>(p, b, key, h / p.group(), scratch.key);
  const double scaled =
      static_cast<double>(p.scale) * dot(scratch.query.data(), scratch.key.data(), p.head_dim());
  return p.softcap > 0 ? p.softcap * std::tanh(scaled / p.softcap) : scaled;
}

/// What distance takes off the score of query i and a key.
double bias(const core::ForwardProblem& p, std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t key) {
  if (!p.slopes.given()) return 0;
  return p.slopes.of(b, h) * std::abs(static_cast<double>(i + p.k_len() - p.q_len() - key));
}

/// Of a head; without weight where there is none.
double sink_of(const core::ForwardProblem& p, std::int64_t h) {
  return p.sinks == nullptr ? -infinity : static_cast<double>(p.sinks[h]);
}

/// Makes the output row of query (b, i, h) in scratch.o and returns its log-sum-exp.
double attend(const core::ForwardProblem& p, std::int64_t b, std::int64_t i, std::int64_t h,
              Scratch& scratch) {
  const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
  std::vector<double>& weights = scratch.weights;
  std::fill(scratch.o.begin(), scratch.o.end(), 0.0);
  weights.clear();
  const double sink = sink_of(p, h);
  double row_max = sink;
  load_query<double>(p, b, i, h, scratch.query);
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const bool seen = p.shows(b, i, h, key);
    weights.push_back(seen ? score(p, b, h, key, scratch) - bias(p, b, i, h, key) : -infinity);
    row_max = std::max(row_max, weights.back());
  }
  if (row_max == -infinity &&
      std::none_of(weights.begin(), weights.end(), [](double w) { return std::isnan(w); })) {
    return -infinity;  // no key, or no key with any weight
  }
  double row_sum = std::exp(sink - row_max);
  for (double& w : weights) row_sum += (w = std::exp(w - row_max));
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    if (!p.shows(b, i, h, key)) continue;
    load_value<double>(p, b, key, h / p.group(), scratch.value);
    const double probability = weights[static_cast<std::size_t>(key - keys.begin)] / row_sum;
    add_scaled(probability, scratch.value.data(), scratch.o.data(), p.value_dim());
  }
  return row_max + std::log(row_sum);
}

/// Calls finish(b, i, h, o_row, lse) for every query row, on all cores.
template <typename Finish>
void for_each_row(const core::ForwardProblem& p, ReferenceMemory& memory, Finish finish) {
  for_each_task(p.batch() * p.q_heads() * p.q_len(), [&](std::int64_t row, int thread) {
    const std::int64_t i = row % p.q_len(), h = row / p.q_len() % p.q_heads(),
                       b = row / p.q_len() / p.q_heads();
    Scratch& s = memory.of_thread(thread);
    const double lse = attend(p, b, i, h, s);
    finish(b, i, h, s.o, lse + static_cast<double>(p.scale) * p.quantisation.dot_of_row(b, i, h));
  });
}

}  // namespace

ReferenceMemory::ReferenceMemory(const core::ForwardProblem& whole, std::int64_t most_keys) {
  const auto d = static_cast<std::size_t>(whole.head_dim()), dv = static_cast<std::size_t>(whole.value_dim());
  parts_.resize(static_cast<std::size_t>(thread_count()));
  for (Part& part : parts_) {
    part.query.resize(d), part.key.resize(d), part.value.resize(dv), part.o.resize(dv);
    part.weights.reserve(static_cast<std::size_t>(most_keys));
  }
}

void reference_forward(const core::ForwardProblem& p) {
  ReferenceMemory memory(p, p.k_len());
  reference_forward(p, memory);
}

void reference_forward(const core::ForwardProblem& p, ReferenceMemory& memory) {
  for_each_row(p, memory,
               [&](std::int64_t b, std::int64_t i, std::int64_t h, const std::vector<double>& o, double lse) {
                 for (std::int64_t e = 0; e < p.value_dim(); ++e)
                   store(p.o, b, i, h, e, o[static_cast<std::size_t>(e)]);
                 if (p.lse.data != nullptr) *core::row_of<float>(p.lse, b, i, h) = static_cast<float>(lse);
               });
}

ReferenceValues reference_values(const core::ForwardProblem& p) {
  const auto rows = static_cast<std::size_t>(p.batch() * p.q_len() * p.q_heads());
  const auto d = static_cast<std::size_t>(p.value_dim());
  ReferenceValues values{std::vector<double>(rows * d), std::vector<double>(rows)};
  ReferenceMemory memory(p, p.k_len());
  for_each_row(p, memory,
               [&](std::int64_t b, std::int64_t i, std::int64_t h, const std::vector<double>& o, double lse) {
                 const auto row = static_cast<std::size_t>((b * p.q_len() + i) * p.q_heads() + h);
                 std::copy(o.begin(), o.end(), values.o.begin() + static_cast<std::ptrdiff_t>(row * d));
                 values.lse[row] = lse;
               });
  return values;
}

}  // namespace tandem::cpu
