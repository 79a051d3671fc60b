// The float64 oracle. Every line is the definition; nothing here is clever.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/element.h"
#include "cpu/forward.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double score(const core::ForwardProblem& p, std::int64_t b, std::int64_t i, std::int64_t h,
             std::int64_t key) {
  double dot = 0;
  for (std::int64_t e = 0; e < p.head_dim(); ++e) {
    dot += load_query(p, b, i, h, e) * load_key(p, b, key, h / p.group(), e);
  }
  const double scaled = static_cast<double>(p.scale) * dot;
  return p.softcap > 0 ? p.softcap * std::tanh(scaled / p.softcap) : scaled;
}

/// Of a head; without weight where there is none.
double sink_of(const core::ForwardProblem& p, std::int64_t h) {
  return p.sinks == nullptr ? -infinity : static_cast<double>(p.sinks[h]);
}

/// Writes the output row of query (b, i, h) to `o` and returns its log-sum-exp. `weights` is scratch.
double attend(const core::ForwardProblem& p, std::int64_t b, std::int64_t i, std::int64_t h,
              std::vector<double>& weights, double* o) {
  const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
  const std::int64_t d = p.head_dim();
  std::fill_n(o, d, 0.0);
  weights.clear();
  const double sink = sink_of(p, h);
  double row_max = sink;
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    weights.push_back(score(p, b, i, h, key));
    row_max = std::max(row_max, weights.back());
  }
  if (row_max == -infinity &&
      std::none_of(weights.begin(), weights.end(), [](double w) { return std::isnan(w); })) {
    return -infinity;  // no key, or no key with any weight
  }
  double row_sum = std::exp(sink - row_max);
  for (double& w : weights) row_sum += (w = std::exp(w - row_max));
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const double probability = weights[static_cast<std::size_t>(key - keys.begin)] / row_sum;
    for (std::int64_t e = 0; e < d; ++e) o[e] += probability * load_value(p, b, key, h / p.group(), e);
  }
  return row_max + std::log(row_sum);
}

/// Calls finish(b, i, h, o_row, lse) for every query row, on all cores.
template <typename Finish>
void for_each_row(const core::ForwardProblem& p, Finish finish) {
  struct Scratch {
    std::vector<double> weights, o;
  };
  // Before the tasks, so that a failed allocation can be reported.
  std::vector<Scratch> scratch(static_cast<std::size_t>(thread_count()));
  for (Scratch& s : scratch) {
    s.weights.reserve(static_cast<std::size_t>(p.k_len()));
    s.o.resize(static_cast<std::size_t>(p.head_dim()));
  }
  for_each_task(p.batch() * p.q_heads() * p.q_len(), [&](std::int64_t row, int thread) {
    const std::int64_t i = row % p.q_len(), h = row / p.q_len() % p.q_heads(),
                       b = row / p.q_len() / p.q_heads();
    Scratch& s = scratch[static_cast<std::size_t>(thread)];
    const double lse = attend(p, b, i, h, s.weights, s.o.data());
    finish(b, i, h, s.o, lse);
  });
}

}  // namespace

void reference_forward(const core::ForwardProblem& p) {
  for_each_row(p,
               [&](std::int64_t b, std::int64_t i, std::int64_t h, const std::vector<double>& o, double lse) {
                 for (std::int64_t e = 0; e < p.head_dim(); ++e)
                   store(p.o, b, i, h, e, o[static_cast<std::size_t>(e)]);
                 if (p.lse.data != nullptr) *core::row_of<float>(p.lse, b, i, h) = static_cast<float>(lse);
               });
}

ReferenceValues reference_values(const core::ForwardProblem& p) {
  const auto rows = static_cast<std::size_t>(p.batch() * p.q_len() * p.q_heads());
  const auto d = static_cast<std::size_t>(p.head_dim());
  ReferenceValues values{std::vector<double>(rows * d), std::vector<double>(rows)};
  for_each_row(p,
               [&](std::int64_t b, std::int64_t i, std::int64_t h, const std::vector<double>& o, double lse) {
                 const auto row = static_cast<std::size_t>((b * p.q_len() + i) * p.q_heads() + h);
                 std::copy(o.begin(), o.end(), values.o.begin() + static_cast<std::ptrdiff_t>(row * d));
                 values.lse[row] = lse;
               });
  return values;
}

}  // namespace tandem::cpu
