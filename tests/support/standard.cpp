#include "tests/support/standard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/dtype.h"
#include "tests/support/e4m3_sum.h"
#include "tests/support/gather.h"

namespace tandem::test {
namespace {

float rounded(tandem_dtype dtype, float value) {
  switch (dtype) {
    case TANDEM_BF16:
      return static_cast<float>(core::Bf16::from(value));
    case TANDEM_FP16:
      return static_cast<float>(core::Fp16::from(value));
    case TANDEM_E4M3:
      return static_cast<float>(core::E4m3::from(value));
    case TANDEM_INT8:
      return static_cast<float>(core::Int8::from(value));
    case TANDEM_FP32:
      break;
  }
  return value;
}

/// Values of 8 bits too, with their scales.
std::vector<float> gather_values(const core::ForwardProblem& p) {
  std::vector<float> values = gather_unscaled_values(p);
  float* value = values.data();
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.kv_heads(); ++h)
      for (std::int64_t s = 0; s < p.k_len(); ++s) {
        const float scale = p.quantisation.v.of(b, s, h, p.kv_heads());
        for (const float* end = value + p.value_dim(); value < end; ++value) *value *= scale;
      }
  return values;
}

/// Of one query and rows of keys, each product added to the sum in fp32.
template <int keys>
void dot_products(const float* q, const float* k, std::int64_t d, float* dots) {
  float sums[keys] = {};
  for (std::int64_t i = 0; i < d; ++i)
    for (int j = 0; j < keys; ++j) sums[j] += q[i] * k[j * d + i];
  std::copy_n(sums, keys, dots);
}

/// How the matrix unit adds: each product in fp32; much coarser, of e4m3; and that in fp16.
enum class Sums { fp32, of_e4m3, of_e4m3_in_fp16 };

Sums sums_of(const core::ForwardProblem& p) {
  if (p.dtype() != TANDEM_E4M3) return Sums::fp32;
  const bool in_fp16 = p.quantisation.v_transposed && p.softcap == 0 && p.head_dim() <= 128 &&
                       p.quantisation.scores_fit_fp16(p.head_dim());
  return in_fp16 ? Sums::of_e4m3_in_fp16 : Sums::of_e4m3;
}

std::vector<float> dot_products(Sums how, const float* q, const float* k, std::int64_t d, std::int64_t keys) {
  constexpr int together = 8;  // so that sums need not wait for one another
  std::vector<float> dots(static_cast<std::size_t>(keys));
  std::int64_t j = 0;
  if (how != Sums::fp32) {
    const bool in_fp16 = how == Sums::of_e4m3_in_fp16;
    for (; j < keys; ++j)
      for (std::int64_t i = 0; i < d; i += 32) {
        dots[j] = add_e4m3_products(dots[j], q + i, k + j * d + i, std::min<int>(32, d - i), in_fp16);
        if (in_fp16) dots[j] = rounded(TANDEM_FP16, dots[j]);
      }
  }
  for (; j + together <= keys; j += together) dot_products<together>(q, k + j * d, d, &dots[j]);
  for (; j < keys; ++j) dot_products<1>(q, k + j * d, d, &dots[j]);
  return dots;
}

/// Where a query stands.
struct Place {
  std::int64_t batch, query, head;
};

/// Scores of one query against `keys`, whose rows start at k.
std::vector<float> scores_of(const core::ForwardProblem& p, const Place& at, const float* q, const float* k,
                             core::KeyRange keys) {
  const std::int64_t d = p.head_dim();
  const core::Quantisation& own = p.quantisation;
  const float q_scale = p.scale * own.q.of(at.batch, at.query, at.head, p.q_heads());
  const std::vector<float> dots =
      dot_products(sums_of(p), q, k + keys.begin * d, d, std::max<std::int64_t>(0, keys.end - keys.begin));
  std::vector<float> scores;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    if (!p.shows(at.batch, at.query, at.head, j)) {
      scores.push_back(-std::numeric_limits<float>::infinity());
      continue;
    }
    const float k_scale = own.k.of(at.batch, j, at.head / p.group(), p.kv_heads());
    const float scaled = q_scale * k_scale * dots[j - keys.begin];
    const float slope = p.slopes.given() ? p.slopes.of(at.batch, at.head) : 0.0f;
    const std::int64_t distance = std::abs(at.query + p.k_len() - p.q_len() - j);
    scores.push_back((p.softcap > 0 ? p.softcap * std::tanh(scaled / p.softcap) : scaled) -
                     slope * static_cast<float>(distance));
  }
  return scores;
}

/// 2^x, x at most 0, by the bits of an e4m3 number: they are nearly 8 times a logarithm.
float by_code(float x) {
  const float code = std::nearbyint(8 * x + 119.54f);
  return code <= 0 ? 0.f : static_cast<float>(core::E4m3{static_cast<std::uint8_t>(code)}) / 256;
}

/// A weight, at most 1, as the factor of P V. 8-bit ones are rounded as they are made, 256 times as large.
float rounded_probability(tandem_dtype dtype, float weight, float sum) {
  if (core::is_8_bit(dtype)) return rounded(TANDEM_E4M3, weight * 256) / 256 / sum;
  return rounded(dtype, weight / sum);
}

/// Of a key/value head.
struct HeadValues {
  const float* rows;
  const float* shift;  ///< what each is besides; nullptr: nothing
};

/// Writes the output row and returns the log-sum-exp. `sink`: -inf where there is none.
float attend(const core::ForwardProblem& p, std::vector<float> weights, float sink, const HeadValues& v,
             core::KeyRange keys, double* o) {
  const std::int64_t d = p.value_dim();
  const float infinity = std::numeric_limits<float>::infinity();
  float row_max = sink;
  for (const float s : weights) row_max = std::isnan(row_max) || s <= row_max ? row_max : s;
  std::fill_n(o, d, 0.0);
  if (row_max == -infinity) return -infinity;
  float sum = std::exp(sink - row_max);
  const bool codes = p.quantisation.v_transposed;
  for (float& w : weights)
    sum += (w = codes ? by_code((w - row_max) * std::numbers::log2e_v<float>) : std::exp(w - row_max));
  std::vector<float> row(d, 0.0f);
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const float probability = rounded_probability(p.dtype(), weights[j], sum);
    const float* value = v.rows + (keys.begin + static_cast<std::int64_t>(j)) * d;
    for (std::int64_t i = 0; i < d; ++i) row[i] += probability * value[i];
  }
  for (std::int64_t i = 0; i < d; ++i)
    o[i] = rounded(p.o.dtype, row[i] + (v.shift != nullptr ? v.shift[i] : 0));
  return row_max + std::log(sum);
}

}  // namespace

ForwardValues standard_forward(const core::ForwardProblem& p) {
  const core::Quantisation& own = p.quantisation;
  const std::vector<float> q = gather(p.q), k = gather(p.k), v = gather_values(p);
  const std::int64_t d = p.head_dim(), dv = p.value_dim(), rows = p.batch() * p.q_len() * p.q_heads();
  ForwardValues out{std::vector<double>(rows * dv), std::vector<double>(rows)};
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.q_heads(); ++h)
      for (std::int64_t i = 0; i < p.q_len(); ++i) {
        const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
        const std::int64_t kv_row = (b * p.kv_heads() + h / p.group()) * p.k_len();
        const float* q_row = &q[((b * p.q_heads() + h) * p.q_len() + i) * d];
        const std::int64_t row = (b * p.q_len() + i) * p.q_heads() + h;
        const float sink = p.sinks == nullptr ? -std::numeric_limits<float>::infinity() : p.sinks[h];
        out.lse[row] = attend(p, scores_of(p, {b, i, h}, q_row, k.data() + kv_row * d, keys), sink,
                              {v.data() + kv_row * dv, own.v_shift.of(b, h / p.group(), p.kv_heads())}, keys,
                              &out.o[row * dv]) +
                       p.scale * own.dot_of_row(b, i, h);
      }
  return out;
}

namespace {

float dot(const float* a, const float* b, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(float factor, const float* from, float* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

/// Rounded to the dtype and brought from the order b, h, s, d to b, s, h, d.
std::vector<double> scattered(const core::Tensor& shape, const std::vector<float>& values, float scale) {
  const std::int64_t tokens = shape.shape[1], heads = shape.shape[2], d = shape.shape[3];
  std::vector<double> result(values.size());
  for (std::int64_t b = 0; b < shape.shape[0]; ++b)
    for (std::int64_t s = 0; s < tokens; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t e = 0; e < d; ++e)
          result[((b * tokens + s) * heads + h) * d + e] =
              rounded(shape.dtype, scale * values[((b * heads + h) * tokens + s) * d + e]);
  return result;
}

/// One query row's inputs, and the first rows of its key/value head's.
struct QueryRow {
  const float *q, *k, *v, *dout;
  float lse, delta;
  core::KeyRange keys;
  float *dq, *dk, *dv;  ///< to be added to, unscaled
};

void add_query(const core::BackwardProblem& p, const QueryRow& row) {
  const std::int64_t d = p.head_dim(), keys = std::max<std::int64_t>(0, row.keys.end - row.keys.begin);
  const auto dots = [&](const float* own, const float* others) {
    return dot_products(Sums::fp32, own, others + row.keys.begin * d, d, keys);
  };
  const std::vector<float> scores = dots(row.q, row.k), products = dots(row.dout, row.v);
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
    const float x = p.scale * scores[j - row.keys.begin];
    const float t = p.softcap > 0 ? std::tanh(x / p.softcap) : 0.0f;
    const float probability = std::exp((p.softcap > 0 ? p.softcap * t : x) - row.lse);
    const float ds = probability * (products[j - row.keys.begin] - row.delta) * (1 - t * t);
    add_scaled(rounded(p.dtype(), probability), row.dout, row.dv + j * d, d);
    add_scaled(rounded(p.dtype(), ds), row.q, row.dk + j * d, d);
    add_scaled(rounded(p.dtype(), ds), row.k + j * d, row.dq, d);
  }
}

}  // namespace

BackwardValues standard_backward(const core::BackwardProblem& p) {
  const std::vector<float> q = gather(p.q), k = gather(p.k), v = gather(p.v), o = gather(p.o),
                           dout = gather(p.dout), lse = gather(p.lse);
  const std::vector<float> dlse = p.dlse.data == nullptr ? std::vector<float>(lse.size()) : gather(p.dlse);
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  const std::int64_t d = p.head_dim();
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.q_heads(); ++h)
      for (std::int64_t i = 0; i < p.q_len(); ++i) {
        const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
        const std::int64_t row = (b * p.q_heads() + h) * p.q_len() + i;
        const std::int64_t kv = (b * p.kv_heads() + h / p.group()) * p.k_len() * d;
        if (keys.begin == keys.end || lse[row] == -std::numeric_limits<float>::infinity()) continue;
        add_query(p, {&q[row * d], &k[kv], &v[kv], &dout[row * d], lse[row],
                      dot(&dout[row * d], &o[row * d], d) - dlse[row], keys, &dq[row * d], &dk[kv], &dv[kv]});
      }
  return {scattered(p.dq, dq, p.scale), scattered(p.dk, dk, p.scale), scattered(p.dv, dv, 1)};
}

}  // namespace tandem::test
