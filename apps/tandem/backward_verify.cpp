#include "backward_verify.h"

#include <cmath>
#include <limits>

#include "element.h"

namespace tandem::cli {
namespace {

HostTensor widened(const HostTensor& tensor) {
  if (tensor.storage.empty()) return tensor;
  return HostTensor::from_dense(TANDEM_FP32, tensor.shape, Layout::bshd(), tensor.to_dense());
}

float dot(const float* a, const float* b, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float factor, const float* from, float* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

/// standard_gradients in the making: inputs dense in fp32, outputs not yet scaled and rounded.
struct Standard {
  const Call& call;
  std::vector<float> q, k, v, o, lse, dout, dlse;
  Gradients out;
  float scale;

  explicit Standard(const BackwardCall& backward)
      : call(backward.forward),
        q(call.q.to_dense()),
        k(call.k.to_dense()),
        v(call.v.to_dense()),
        dout(backward.dout.to_dense()),
        out{std::vector<float>(q.size()), std::vector<float>(k.size()), std::vector<float>(v.size())},
        scale(call.scale > 0 ? call.scale : 1 / std::sqrt(static_cast<float>(call.q.shape[3]))) {
    Values forward = run_standard(call);
    o = std::move(forward.o);
    lse = std::move(forward.lse);
    dlse = backward.dlse.storage.empty() ? std::vector<float>(lse.size()) : backward.dlse.to_dense();
  }

  void add_query(std::int64_t b, std::int64_t s, std::int64_t h) {
    const std::int64_t d = call.q.shape[3], kv_heads = call.k.shape[2];
    const std::int64_t row = (b * call.q.shape[1] + s) * call.q.shape[2] + h;
    const float *query = &q[row * d], *gradient = &dout[row * d];
    const float delta = dot(gradient, &o[row * d], d) - dlse[row];
    const KeyRange keys = visible_keys(call, s);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const std::int64_t at = ((b * call.k.shape[1] + key) * kv_heads + h / (call.q.shape[2] / kv_heads)) * d;
      const float x = scale * dot(query, &k[at], d);
      const float t = call.softcap > 0 ? std::tanh(x / call.softcap) : 0.0f;
      const float probability = std::exp((call.softcap > 0 ? call.softcap * t : x) - lse[row]);
      const float ds = round_to(call.q.dtype, probability * (dot(gradient, &v[at], d) - delta) * (1 - t * t));
      add_scaled(round_to(call.q.dtype, probability), gradient, &out.dv[at], d);
      add_scaled(ds, query, &out.dk[at], d);
      add_scaled(ds, &k[at], &out.dq[row * d], d);
    }
  }
};

}  // namespace

Gradients exact_gradients(const BackwardCall& call) {
  BackwardCall wide = call;
  wide.forward.backend = TANDEM_BACKEND_REFERENCE;
  for (HostTensor* tensor : {&wide.forward.q, &wide.forward.k, &wide.forward.v, &wide.dout, &wide.dlse})
    *tensor = widened(*tensor);
  wide.forward.o_layout = wide.forward.lse_layout = Layout::bshd();
  wide.dq_layout = wide.dk_layout = wide.dv_layout = Layout::bshd();
  const std::unique_ptr<Place> host = make_place(TANDEM_BACKEND_REFERENCE);
  PreparedBackward prepared(*host, wide);
  prepared.enqueue();
  const BackwardOutput output = prepared.fetch();
  return {output.dq.to_dense(), output.dk.to_dense(), output.dv.to_dense()};
}

Gradients standard_gradients(const BackwardCall& call) {
  Standard standard(call);
  const Shape& q = call.forward.q.shape;
  for (std::int64_t b = 0; b < q[0]; ++b)
    for (std::int64_t h = 0; h < q[2]; ++h)
      for (std::int64_t s = 0; s < q[1]; ++s) standard.add_query(b, s, h);
  const auto finish = [&](std::vector<float>& values, float factor) {
    for (float& value : values) value = round_to(call.forward.q.dtype, factor * value);
  };
  finish(standard.out.dq, standard.scale);
  finish(standard.out.dk, standard.scale);
  finish(standard.out.dv, 1);
  return std::move(standard.out);
}

Verdict verify(const BackwardCall& call, const BackwardOutput& output) {
  const Gradients exact = exact_gradients(call), standard = standard_gradients(call);
  // rowsum(dout o) and dout v^T cancel; what is left of fp32 sums in another order does not shrink with them.
  const Shape& q = call.forward.q.shape;
  const float scale = call.forward.scale > 0 ? call.forward.scale : 1 / std::sqrt(static_cast<float>(q[3]));
  const double terms = static_cast<double>(q[3] * (1 + q[1] * q[2]));
  const Allowance allowance{call.forward.softcap > 0 ? 3.0 : 2.0, 5e-7 * scale * std::sqrt(terms)};
  Verdict worst;
  double worst_ratio = -1;
  std::string complaints;
  const auto add = [&](const std::string& name, const HostTensor& result, const std::vector<float>& rounded,
                       const std::vector<float>& reference) {
    const Verdict verdict = judge({{result.to_dense(), {}}, {reference, {}}, {rounded, {}}}, allowance);
    if (!verdict.complaint.empty()) complaints += name + ": " + verdict.complaint;
    if (!result.padding_untouched())
      complaints += "memory between or around the rows of " + name + " was written; ";
    const double ratio = verdict.standard.rmse > 0 ? verdict.error.rmse / verdict.standard.rmse : 0;
    if (ratio > worst_ratio) worst = verdict, worst_ratio = ratio;
  };
  add("dq", output.dq, standard.dq, exact.dq);
  add("dk", output.dk, standard.dk, exact.dk);
  add("dv", output.dv, standard.dv, exact.dv);
  if (!complaints.empty()) complaints.resize(complaints.size() - 2);
  worst.complaint = complaints;
  return worst;
}

}  // namespace tandem::cli
