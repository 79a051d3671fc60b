// The float64 oracle of the backward pass. Every line is the definition; nothing here is clever.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/parallel.h"
#include "cpu/rows.h"
#include "cpu/varlen.h"

namespace tandem::cpu {
namespace {

using core::BackwardProblem;
using core::KeyRange;
using core::Tensor;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A dense float64 copy of a tensor, whose rows can be pointed at.
struct Dense {
  std::int64_t tokens, heads, head_dim;
  std::vector<double> values;

  explicit Dense(const Tensor& t)
      : tokens(t.shape[1]),
        heads(t.shape[2]),
        head_dim(t.shape[3]),
        values(static_cast<std::size_t>(t.shape[0] * tokens * heads * head_dim)) {}

  double* row(std::int64_t b, std::int64_t s, std::int64_t h) {
    return values.data() + ((b * tokens + s) * heads + h) * head_dim;
  }
  const double* row(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return const_cast<Dense*>(this)->row(b, s, h);
  }
};

/// Of a tensor without elements none, however large its other dimensions are.
template <typename Visit>
void for_each_row(const Tensor& t, Visit visit) {
  if (t.shape[1] == 0 || t.shape[2] == 0) return;
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t s = 0; s < t.shape[1]; ++s)
      for (std::int64_t h = 0; h < t.shape[2]; ++h) visit(b, s, h);
}

Dense widened(const Tensor& t) {
  Dense dense(t);
  for_each_row(t, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
    load_row<double>(t, b, s, h, {dense.row(b, s, h), static_cast<std::size_t>(dense.head_dim)});
  });
  return dense;
}

void round_into(const Tensor& t, const Dense& dense) {
  for_each_row(t, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
    for (std::int64_t e = 0; e < dense.head_dim; ++e) store(t, b, s, h, e, dense.row(b, s, h)[e]);
  });
}

/// What the forward knows: o and lse, rounded as the caller has them or not.
struct ForwardResults {
  Dense o, lse;
};

std::vector<double> zeros_of_sinks(const BackwardProblem& p) {
  return std::vector<double>(p.sinks == nullptr ? 0 : static_cast<std::size_t>(p.q_heads()));
}

/// Everything of a sequence in float64, or of a call of fixed lengths: inputs, and outputs to be added to.
struct Gradients {
  const BackwardProblem& p;
  const Dense q, k, v, dout;
  const ForwardResults forward;
  Dense dq, dk, dv;
  std::vector<double> dsinks;

  Gradients(const BackwardProblem& problem, ForwardResults results)
      : p(problem),
        q(widened(p.q)),
        k(widened(p.k)),
        v(widened(p.v)),
        dout(widened(p.dout)),
        forward(std::move(results)),
        dq(p.dq),
        dk(p.dk),
        dv(p.dv),
        dsinks(zeros_of_sinks(p)) {}

  /// rowsum(dout o) - dlse of query (b, i, h).
  double delta(std::int64_t b, std::int64_t i, std::int64_t h) const {
    const double dlse = p.dlse.data == nullptr ? 0 : load(p.dlse, b, i, h, 0);
    return dot(dout.row(b, i, h), forward.o.row(b, i, h), p.head_dim()) - dlse;
  }

  /// Adds what query (b, i, h) contributes to the three gradients.
  void add_query(std::int64_t b, std::int64_t i, std::int64_t h) {
    const std::int64_t d = p.head_dim(), kv_head = h / p.group();
    const KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
    const double lse = *forward.lse.row(b, i, h);
    if (keys.begin == keys.end || lse == -infinity) return;
    const double *query = q.row(b, i, h), *dout_row = dout.row(b, i, h);
    const double own_delta = delta(b, i, h);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const double x = p.scale * dot(query, k.row(b, key, kv_head), d);
      const double t = p.softcap > 0 ? std::tanh(x / p.softcap) : 0;
      const double probability = std::exp((p.softcap > 0 ? p.softcap * t : x) - lse);
      const double ds = probability * (dot(dout_row, v.row(b, key, kv_head), d) - own_delta);
      const double dx = p.scale * ds * (1 - t * t);
      add_scaled(probability, dout_row, dv.row(b, key, kv_head), d);
      add_scaled(dx, query, dk.row(b, key, kv_head), d);
      add_scaled(dx, k.row(b, key, kv_head), dq.row(b, i, h), d);
    }
  }

  /// Over all rows, whatever the mask: it hides no sink.
  void add_sinks() {
    for_each_row(p.lse, [this](std::int64_t b, std::int64_t i, std::int64_t h) {
      const double lse = *forward.lse.row(b, i, h);
      if (lse == -infinity) return;
      dsinks[static_cast<std::size_t>(h)] -= std::exp(p.sinks[h] - lse) * delta(b, i, h);
    });
  }

  void add_all() {
    if (p.sinks != nullptr) add_sinks();
    // Key/value heads share no gradient, so they may run side by side.
    for_each_task(p.batch() * p.kv_heads(), [this](std::int64_t task, int) {
      const std::int64_t b = task / p.kv_heads(), kv_head = task % p.kv_heads();
      for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h)
        for (std::int64_t i = 0; i < p.q_len(); ++i) add_query(b, i, h);
    });
  }
};

/// `values` one after another behind those of `all`.
void append(std::vector<double>& all, const std::vector<double>& values) {
  all.insert(all.end(), values.begin(), values.end());
}

void add(std::vector<double>& sums, const std::vector<double>& values) {
  std::transform(values.begin(), values.end(), sums.begin(), sums.begin(), std::plus<>());
}

/// o and lse in float64, from q, k and v alone.
ForwardResults exact_results(const BackwardProblem& p) {
  ReferenceValues values = reference_values(core::forward_of(p));
  ForwardResults results{Dense(p.o), Dense(p.lse)};
  results.o.values = std::move(values.o);
  results.lse.values = std::move(values.lse);
  return results;
}

}  // namespace

void reference_backward(const BackwardProblem& p) {
  std::vector<double> dsinks = zeros_of_sinks(p);
  std::vector<std::array<Dense, 3>> all;  // rounded when all memory has been had: a failure writes nothing
  all.reserve(static_cast<std::size_t>(sequences_of(p)));
  for (std::int64_t i = 0; i < sequences_of(p); ++i) {
    BackwardProblem own = sequence_of(p, i);
    if (p.dsinks == nullptr) own.sinks = nullptr;  // they are in lse, and not to be read
    Gradients gradients(own, {widened(own.o), widened(own.lse)});
    gradients.add_all();
    all.push_back({std::move(gradients.dq), std::move(gradients.dk), std::move(gradients.dv)});
    add(dsinks, gradients.dsinks);
  }
  for (std::int64_t i = 0; i < sequences_of(p); ++i) {
    const BackwardProblem own = sequence_of(p, i);
    const auto& [dq, dk, dv] = all[static_cast<std::size_t>(i)];
    round_into(own.dq, dq), round_into(own.dk, dk), round_into(own.dv, dv);
  }
  if (p.dsinks != nullptr)
    std::transform(dsinks.begin(), dsinks.end(), p.dsinks,
                   [](double gradient) { return static_cast<float>(gradient); });
}

ReferenceGradients reference_gradients(const BackwardProblem& p) {
  ReferenceGradients all{{}, {}, {}, zeros_of_sinks(p)};
  for (std::int64_t i = 0; i < sequences_of(p); ++i) {
    const BackwardProblem own = sequence_of(p, i);
    Gradients gradients(own, exact_results(own));
    gradients.add_all();
    append(all.dq, gradients.dq.values);
    append(all.dk, gradients.dk.values);
    append(all.dv, gradients.dv.values);
    add(all.dsinks, gradients.dsinks);
  }
  return all;
}

}  // namespace tandem::cpu
