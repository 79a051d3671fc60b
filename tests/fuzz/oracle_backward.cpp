#include "tests/fuzz/oracle_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/fuzz/oracle_attention.h"
#include "tests/fuzz/oracle_rules.h"

namespace tandem::fuzz {
namespace {

/// A sum of products, and of their magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double x) { value += x, magnitude += std::abs(x); }
};

Sum dot(const Numbers& a, const Numbers& b) {
  Sum sum;
  for (std::size_t e = 0; e < a.size(); ++e) sum.add(a[e] * b[e]);
  return sum;
}

bool all_finite(const Numbers& numbers) {
  return std::ranges::all_of(numbers, [](double x) { return std::isfinite(x); });
}

/// Adds factor * row to a row of the gradient; the factor's own terms have a magnitude too.
void add_row(Gradient& gradient, std::size_t begin, const Sum& factor, const Numbers& row) {
  for (std::size_t e = 0; e < row.size(); ++e) {
    gradient.values[begin + e] += factor.value * row[e];
    gradient.magnitudes[begin + e] += factor.magnitude * std::abs(row[e]);
  }
}

Gradient zeros(const tandem_tensor& t) {
  const auto count = static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
  return {Numbers(count), Numbers(count)};
}

std::size_t place(const tandem_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return static_cast<std::size_t>(((b * t.shape[1] + s) * t.shape[2] + h) * t.shape[3]);
}

/// What is taken off a query's products: rowsum(dout * o) - dlse.
Sum delta_of(const tandem_backward_args& args, std::int64_t b, std::int64_t i, std::int64_t h) {
  Sum delta = dot(read_row(args.dout, b, i, h), read_row(args.o, b, i, h));
  if (args.dlse.data != nullptr) delta.add(-value(args.dlse, row_at(args.dlse, b, i, h), 0));
  return delta;
}

/// One query's part in the gradient of its head's sink, also where it sees no key.
void add_to_sink(const tandem_backward_args& args, const Sum& delta, double lse, std::int64_t h,
                 Gradients& all) {
  if (args.dsinks == nullptr) return;
  const double weight = std::exp(static_cast<double>(args.sinks[h]) - lse);
  all.comparable = all.comparable && std::isfinite(weight) && std::isfinite(delta.value);
  all.dsinks.values[static_cast<std::size_t>(h)] -= weight * delta.value;
  all.dsinks.magnitudes[static_cast<std::size_t>(h)] += weight * (1 + std::abs(lse)) * delta.magnitude;
}

/// One query's part in all gradients.
void add_query(const tandem_backward_args& args, std::int64_t b, std::int64_t i, std::int64_t h,
               Gradients& all) {
  const Keys keys = keys_of(args.mask, args.q.shape[1], args.k.shape[1], i);
  const double lse = value(args.lse, row_at(args.lse, b, i, h), 0);
  if (lse == -std::numeric_limits<double>::infinity()) return;
  const Sum delta = delta_of(args, b, i, h);
  add_to_sink(args, delta, lse, h, all);
  if (keys.begin == keys.end) return;
  const std::int64_t kv_head = h / (args.q.shape[2] / args.k.shape[2]);
  const double scale = args.scale > 0 ? args.scale : 1 / std::sqrt(static_cast<double>(args.q.shape[3]));
  const Numbers q = read_row(args.q, b, i, h), o = read_row(args.o, b, i, h),
                dout = read_row(args.dout, b, i, h);
  all.comparable = all.comparable && std::isfinite(lse) && std::isfinite(delta.value) && all_finite(q) &&
                   all_finite(dout) && all_finite(o);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const Numbers k = read_row(args.k, b, j, kv_head), v = read_row(args.v, b, j, kv_head);
    all.comparable = all.comparable && all_finite(k) && all_finite(v);
    const Sum product = dot(q, k);
    const double x = scale * product.value, reach = 1 + scale * product.magnitude;
    const double capped = args.softcap > 0 ? args.softcap * std::tanh(x / args.softcap) : x;
    const double slope = args.softcap > 0 ? 1 - std::pow(capped / args.softcap, 2) : 1;
    const double p = std::exp(capped - lse);
    const Sum dp = dot(dout, v);
    const double dx = p * (dp.value - delta.value) * slope;
    const double dx_reach = p * reach * (dp.magnitude + delta.magnitude) * scale;
    // Of larger scores fp32's error is not small beside 1, and p any number. Larger factors of k, q and dout
    // may be infinite in fp32, and NaN times a zero there.
    constexpr double largest_reach = 1e6, largest_factor = 1e30;
    all.comparable =
        all.comparable && reach < largest_reach && p < largest_factor && dx_reach < largest_factor;
    add_row(all.dv, place(args.v, b, j, kv_head), {p, p * reach}, dout);
    add_row(all.dq, place(args.q, b, i, h), {dx * scale, dx_reach}, k);
    add_row(all.dk, place(args.k, b, j, kv_head), {dx * scale, dx_reach}, q);
  }
}

}  // namespace

Verdict judge(const tandem_backward_args& args) {
  if (args.struct_size != sizeof args || !is_host_backend(args.backend)) return Verdict::invalid;
  if (args.deterministic != 0 && args.deterministic != 1) return Verdict::invalid;
  if (!factors_hold(args.scale, args.softcap) || !mask_holds(args.mask)) return Verdict::invalid;
  if (args.mask != nullptr && args.mask->chunk != 0) return Verdict::invalid;
  std::vector<const tandem_tensor*> statistics = {&args.lse};
  if (args.dlse.data != nullptr) statistics.push_back(&args.dlse);
  if (!is_dtype(args.q.dtype)) return Verdict::invalid;
  for (const tandem_tensor* t : {&args.k, &args.v, &args.o, &args.dout, &args.dq, &args.dk, &args.dv})
    if (!same_dtype(*t, args.q)) return Verdict::invalid;
  if (!queries_and_keys_hold(args.q, args.k) || args.k.shape[0] != args.q.shape[0]) return Verdict::invalid;
  for (const tandem_tensor* t : {&args.o, &args.dout, &args.dq})
    if (!same_shape(*t, args.q, 4)) return Verdict::invalid;
  for (const tandem_tensor* t : {&args.v, &args.dk, &args.dv})
    if (!same_shape(*t, args.k, 4)) return Verdict::invalid;
  std::vector<const tandem_tensor*> inputs = {&args.q, &args.k, &args.v, &args.o, &args.dout},
                                    outputs = {&args.dq, &args.dk, &args.dv};
  for (const tandem_tensor* t : statistics) {
    if (!is_fp32(*t) || !same_shape(*t, args.q, 3) || t->shape[3] != 1) return Verdict::invalid;
    inputs.push_back(t);
  }
  for (const auto& some : {inputs, outputs})
    for (const tandem_tensor* t : some)
      if (!memory_holds(*t)) return Verdict::invalid;
  const tandem_tensor sinks = as_tensor(args.sinks, args.q.shape[2]), dsinks = dsinks_of(args);
  if (args.dsinks != nullptr) {
    if (args.sinks == nullptr || !memory_holds(sinks) || !memory_holds(dsinks)) return Verdict::invalid;
    inputs.push_back(&sinks), outputs.push_back(&dsinks);
  }
  return overlaps_hold(inputs, outputs);
}

tandem_tensor dsinks_of(const tandem_backward_args& args) {
  return as_tensor(args.dsinks, args.dsinks == nullptr ? 0 : args.q.shape[2]);
}

Gradients differentiate(const tandem_backward_args& args) {
  Gradients all{zeros(args.dq), zeros(args.dk), zeros(args.dv), zeros(dsinks_of(args))};
  for (std::int64_t b = 0; has_elements(args.q) && b < args.q.shape[0]; ++b)
    for (std::int64_t i = 0; i < args.q.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) add_query(args, b, i, h, all);
  return all;
}

}  // namespace tandem::fuzz
