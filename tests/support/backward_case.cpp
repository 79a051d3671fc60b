#include "tests/support/backward_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "tests/support/standard.h"

namespace tandem::test {
namespace {

BackwardCase random_shapes(Random& random, std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len) {
  BackwardCase c;
  ForwardCase& f = c.forward;
  f.seed = seed;
  f.dtype = dtype;
  f.batch = static_cast<std::int64_t>(1 + random() % 2);
  f.q_len = random_length(random, max_len);
  f.k_len = random_length(random, max_len);
  f.kv_heads = static_cast<std::int64_t>(1 + random() % 2);
  f.q_heads = f.kv_heads * static_cast<std::int64_t>(1 + random() % 4);
  f.head_dim = static_cast<std::int64_t>(8 + random() % 32 * 8);
  f.mask = random_mask(random, f.q_len, f.k_len);
  f.scale = random() % 4 == 0 ? 0.3f : 0.0f;
  f.softcap = random() % 4 == 0 ? 5.0f : 0.0f;
  c.dlse = random() % 3 == 0;
  c.deterministic = random() % 2 == 0;
  return c;
}

void set_options(core::BackwardProblem& p, const BackwardCase& c) {
  const core::ForwardProblem forward = shapes_of(c.forward);
  p.mask = forward.mask;
  p.scale = forward.scale;
  p.softcap = forward.softcap;
}

HostTensor tensor_like(const core::Tensor& shape, const Layout& layout) {
  return {shape.dtype, {shape.shape[0], shape.shape[1], shape.shape[2], shape.shape[3]}, layout};
}

/// `values` in the order b, s, h, d.
void copy_values(const std::vector<double>& values, HostTensor& to) {
  const core::Tensor shape = to.view();
  const double* at = values.data();
  for (std::int64_t b = 0; b < shape.shape[0]; ++b)
    for (std::int64_t s = 0; s < shape.shape[1]; ++s)
      for (std::int64_t h = 0; h < shape.shape[2]; ++h)
        for (std::int64_t e = 0; e < shape.shape[3]; ++e) to.set(b, s, h, e, static_cast<float>(*at++));
}

/// NaN in the rows `s` of every head, unless one row is all rows.
void poison_row(HostTensor& tensor, const Layout& layout, std::int64_t s) {
  if (layout.broadcast[1]) return;
  const core::Tensor shape = tensor.view();
  for (std::int64_t b = 0; b < shape.shape[0]; ++b)
    for (std::int64_t h = 0; h < shape.shape[2]; ++h)
      for (std::int64_t e = 0; e < shape.shape[3]; ++e) tensor.set(b, s, h, e, NAN);
}

}  // namespace

std::int64_t random_length(Random& random, std::int64_t max_len) {
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  switch (random() % 4) {
    case 0:
      return below(5);  // 0 too
    case 1:
      return below(max_len + 1);
    default:
      return below(std::min<std::int64_t>(max_len + 1, 70));
  }
}

std::ostream& operator<<(std::ostream& out, const BackwardCase& c) {
  out << c.forward << (c.dlse ? " dlse" : "") << (c.sinks ? " sinks" : "")
      << (c.deterministic ? " deterministic" : "");
  return out << " dout " << c.dout << " dlse " << c.dlse_layout << " dq " << c.dq << " dk " << c.dk << " dv "
             << c.dv;
}

BackwardCase random_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len) {
  Random random(seed);
  BackwardCase c = random_shapes(random, seed, dtype, max_len);
  ForwardCase& f = c.forward;
  for (Layout* layout : {&f.q, &f.k, &f.v, &c.dout, &c.dlse_layout}) *layout = random_input_layout(random);
  // o and lse are the forward's, every row of its own.
  for (Layout* layout : {&f.o, &f.lse_layout, &c.dq, &c.dk, &c.dv}) *layout = random_layout(random);
  c.sinks = random() % 3 == 0;
  return c;
}

BackwardCase random_tma_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len) {
  Random random(seed);
  BackwardCase c = random_shapes(random, seed, dtype, max_len);
  ForwardCase& f = c.forward;
  for (Layout* layout : {&f.q, &f.k, &f.v, &f.o, &f.lse_layout, &c.dout, &c.dlse_layout, &c.dq, &c.dk, &c.dv})
    *layout = random_tma_layout(random);
  c.sinks = random() % 3 == 0;
  return c;
}

core::BackwardProblem shapes_of(const BackwardCase& c) {
  const core::ForwardProblem forward = shapes_of(c.forward);
  core::BackwardProblem p{};
  p.q = p.o = p.dout = p.dq = forward.q;
  p.k = p.v = p.dk = p.dv = forward.k;
  p.lse = {nullptr, TANDEM_FP32, {forward.q.shape[0], forward.q.shape[1], forward.q.shape[2], 1}, {}};
  set_options(p, c);
  return p;
}

BackwardTensors::BackwardTensors(const BackwardCase& c) : BackwardTensors(c, shapes_of(c)) {}

BackwardTensors::BackwardTensors(const BackwardCase& c, const core::BackwardProblem& shapes)
    : setup(c),
      q(tensor_like(shapes.q, c.forward.q)),
      k(tensor_like(shapes.k, c.forward.k)),
      v(tensor_like(shapes.v, c.forward.v)),
      o(tensor_like(shapes.o, c.forward.o)),
      lse(tensor_like(shapes.lse, c.forward.lse_layout)),
      dout(tensor_like(shapes.dout, c.dout)),
      dlse(tensor_like(shapes.lse, c.dlse_layout)),
      dq(tensor_like(shapes.dq, c.dq)),
      dk(tensor_like(shapes.dk, c.dk)),
      dv(tensor_like(shapes.dv, c.dv)),
      sinks(TANDEM_FP32, {1, 1, 1, c.forward.q_heads}),
      dsinks(TANDEM_FP32, {1, 1, 1, c.forward.q_heads}) {
  std::uint64_t seed = c.forward.seed * 5;
  for (HostTensor* tensor : {&q, &k, &v, &dout, &dlse}) tensor->fill_random(c.forward.nearly_normal, seed++);
  sinks.fill_normal(seed + 1'000'003);
  if (c.forward.q_heads > 2) sinks.set(0, 0, 0, 1, 60.f);  // outweighs all keys
  if (c.forward.q_heads > 3) sinks.set(0, 0, 0, 2, -std::numeric_limits<float>::infinity());
  run_forward();
}

core::BackwardProblem BackwardTensors::problem() const {
  core::BackwardProblem p{};
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  p.o = o.view();
  p.lse = lse.view();
  p.dout = dout.view();
  if (setup.dlse) p.dlse = dlse.view();
  p.dq = dq.view();
  p.dk = dk.view();
  p.dv = dv.view();
  set_options(p, setup);
  if (setup.sinks) {
    p.sinks = static_cast<const float*>(sinks.view().data);
    p.dsinks = static_cast<float*>(dsinks.view().data);
  }
  return p;
}

void BackwardTensors::run_forward() {
  const ForwardValues values = standard_forward(core::forward_of(problem()));
  copy_values(values.o, o);
  copy_values(values.lse, lse);
}

void BackwardTensors::poison_unseen_rows() {
  const ForwardCase& f = setup.forward;
  for (std::int64_t i = 0; i < f.q_len; ++i) {
    const core::KeyRange keys = f.mask.visible_keys(i, f.q_len, f.k_len);
    if (keys.begin < keys.end) continue;
    poison_row(q, f.q, i);
    if (setup.sinks) continue;
    poison_row(o, f.o, i);
    poison_row(dout, setup.dout, i);
    poison_row(dlse, setup.dlse_layout, i);
  }
  for (std::int64_t key = 0; key < f.k_len; ++key) {
    const core::KeyRange queries = f.mask.transposed().visible_keys(key, f.k_len, f.q_len);
    if (queries.begin < queries.end) continue;
    poison_row(k, f.k, key);
    poison_row(v, f.v, key);
  }
}

BackwardTensors::SinkGradient BackwardTensors::sink_gradient(std::int64_t h) const {
  const ForwardCase& f = setup.forward;
  SinkGradient sum;
  for (std::int64_t b = 0; b < f.batch; ++b)
    for (std::int64_t i = 0; i < f.q_len; ++i) {
      const double row_lse = lse.at(b, i, h, 0), weight = std::exp(sinks.at(0, 0, 0, h) - row_lse);
      if (row_lse == -std::numeric_limits<double>::infinity()) continue;
      const double of_lse = setup.dlse ? dlse.at(b, i, h, 0) : 0;
      sum.gradient += weight * of_lse, sum.magnitude += weight * std::abs(of_lse);
      for (std::int64_t e = 0; e < f.head_dim; ++e) {
        const double product = dout.at(b, i, h, e) * o.at(b, i, h, e);
        sum.gradient -= weight * product, sum.magnitude += weight * std::abs(product);
      }
    }
  return sum;
}

std::string BackwardTensors::dsinks_failure() const {
  std::vector<SinkGradient> expected;
  for (std::int64_t h = 0; setup.sinks && h < setup.forward.q_heads; ++h)
    expected.push_back(sink_gradient(h));
  return failure_of_dsinks(dsinks, expected);
}

std::string failure_of_dsinks(const HostTensor& dsinks,
                              const std::vector<BackwardTensors::SinkGradient>& expected) {
  constexpr double rounding = 1e-4;
  std::ostringstream failure;
  for (std::size_t h = 0; h < expected.size(); ++h) {
    const auto& [gradient, magnitude] = expected[h];
    const double result = dsinks.at(0, 0, 0, static_cast<std::int64_t>(h));
    if (!(std::abs(result - gradient) <= rounding * magnitude))
      failure << "dsinks[" << h << "] is " << result << ", not " << gradient << "; ";
  }
  if (!dsinks.guards_intact()) failure << "cells beside dsinks were written; ";
  if (expected.empty() && !dsinks.untouched()) failure << "dsinks were written that nobody wanted; ";
  return failure.str();
}

BackwardArgs::BackwardArgs(const BackwardTensors& t) : BackwardArgs(t.problem(), t.setup) {}

BackwardArgs::BackwardArgs(const core::BackwardProblem& p, const BackwardCase& setup)
    : mask(to_c(setup.forward.mask)) {
  args.struct_size = sizeof(args);
  args.deterministic = setup.deterministic;
  args.q = p.q, args.k = p.k, args.v = p.v;
  args.o = p.o, args.lse = p.lse, args.dout = p.dout, args.dlse = p.dlse;
  args.dq = p.dq, args.dk = p.dk, args.dv = p.dv;
  args.mask = &mask;
  args.scale = setup.forward.scale;
  args.softcap = setup.forward.softcap;
  args.sinks = p.sinks, args.dsinks = p.dsinks;
  if (!p.varlen.given) return;
  varlen.struct_size = sizeof(varlen);
  varlen.batch = p.varlen.sequences;
  varlen.cu_seqlens_q = p.varlen.cu_seqlens_q, varlen.cu_seqlens_k = p.varlen.cu_seqlens_k;
  varlen.seqused_k = p.varlen.seqused_k;
  varlen.max_seqlen_q = p.varlen.max_seqlen_q, varlen.max_seqlen_k = p.varlen.max_seqlen_k;
  args.varlen = &varlen;
}

Allowance gradient_allowance(const core::BackwardProblem& p) {
  const auto terms = static_cast<double>(p.head_dim() * (1 + p.q_len() * p.group()));
  return {.max_factor = p.softcap > 0 ? 3.0 : 2.0,
          .noise = 5e-7 * p.scale * std::sqrt(terms),
          .alike = p.head_dim(),  // a row's errors are those of its few large dS
          .rounded_to = p.dtype()};
}

}  // namespace tandem::test
