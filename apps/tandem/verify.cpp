#include "verify.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "element.h"

namespace tandem::cli {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double distance(float value, float expected) {
  if (std::isfinite(value) && std::isfinite(expected)) {
    return std::fabs(static_cast<double>(value) - static_cast<double>(expected));
  }
  const bool both_nan = std::isnan(value) && std::isnan(expected);
  return both_nan || value == expected ? 0 : infinity;
}

/// One query of run_standard. `q` is its row; k and v are the rows of its head.
struct StandardRow {
  const float *q, *k, *v;
  std::int64_t k_pitch, v_pitch;  ///< floats from a key to the next
  std::int64_t head_dim, value_dim;
  KeyRange keys;
  std::int64_t position;
  float slope;
};

void scores_of(const StandardRow& row, const Call& call, float scale, std::vector<float>& scores) {
  for (std::int64_t key = row.keys.begin; key < row.keys.end; ++key) {
    float score = 0;
    for (std::int64_t c = 0; c < row.head_dim; ++c) score += row.q[c] * row.k[key * row.k_pitch + c];
    score *= scale;
    if (call.softcap > 0) score = call.softcap * std::tanh(score / call.softcap);
    scores.push_back(score - row.slope * static_cast<float>(std::abs(row.position - key)));
  }
}

float standard_row(const StandardRow& row, const Call& call, float scale, float* o) {
  if (row.keys.begin == row.keys.end) return -std::numeric_limits<float>::infinity();  // o stays 0
  std::vector<float> scores;
  scores_of(row, call, scale, scores);
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += (score = std::exp(score - largest));
  std::vector<float> accumulators(static_cast<std::size_t>(row.value_dim));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const float probability = round_to(call.q.dtype, scores[i] / sum);
    const float* value = row.v + (row.keys.begin + static_cast<std::int64_t>(i)) * row.v_pitch;
    for (std::size_t c = 0; c < accumulators.size(); ++c) accumulators[c] += probability * value[c];
  }
  for (std::size_t c = 0; c < accumulators.size(); ++c) o[c] = round_to(call.q.dtype, accumulators[c]);
  return largest + std::log(sum);
}

HostTensor widened(const HostTensor& tensor) {
  return HostTensor::from_dense(TANDEM_FP32, tensor.shape, Layout::bshd(), tensor.to_dense());
}

std::vector<float> finite_of(std::span<const float> values) {
  std::vector<float> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), [](float value) { return std::isfinite(value); });
  return finite;
}

double root_mean_square(std::span<const float> values) {
  return compare(values, std::vector<float>(values.size(), 0.0f)).rmse;
}

/// `standard`, and where that is infinitely far off, `exact`: one element beyond its range would allow a
/// result everything.
std::vector<float> yardstick(std::span<const float> standard, std::span<const float> exact) {
  std::vector<float> values(standard.begin(), standard.end());
  for (std::size_t i = 0; i < std::min(values.size(), exact.size()); ++i)
    if (std::isinf(distance(values[i], exact[i]))) values[i] = exact[i];
  return values;
}

double lse_error(std::span<const float> values, std::span<const float> expected) {
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double weight = std::isfinite(expected[i]) ? std::max(1.0, std::fabs(double{expected[i]})) : 1.0;
    largest = std::max(largest, distance(values[i], expected[i]) / weight);
  }
  return largest;
}

}  // namespace

Error compare(std::span<const float> values, std::span<const float> expected) {
  if (values.size() != expected.size()) return {infinity, infinity};
  double largest = 0, squares = 0, finite = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = distance(values[i], expected[i]);
    largest = std::max(largest, error);
    squares += error * error;
    finite += std::isfinite(expected[i]);
  }
  return {largest, std::sqrt(squares / std::max(1.0, finite))};
}

Values run_oracle(const Call& call) {
  Call wide = call;
  wide.backend = TANDEM_BACKEND_REFERENCE;
  wide.q = widened(call.q);
  wide.k = widened(call.k);
  wide.v = widened(call.v);
  wide.eight_bit.reset();
  wide.want_lse = true;
  wide.o_layout = wide.lse_layout = Layout::bshd();
  const std::unique_ptr<Place> host = make_place(TANDEM_BACKEND_REFERENCE);
  PreparedCall prepared(*host, wide);
  prepared.enqueue();
  const Output output = prepared.fetch();
  return {output.o.to_dense(), output.lse.to_dense()};
}

Values run_standard(const Call& call) {
  const std::vector<float> q = call.q.to_dense(), k = call.k.to_dense(), v = call.v.to_dense();
  const std::int64_t batch = call.q.shape[0], queries = call.q.shape[1], heads = call.q.shape[2],
                     head_dim = call.q.shape[3], value_dim = call.v.shape[3], keys = call.k.shape[1],
                     kv_heads = call.k.shape[2];
  const float scale = call.scale > 0 ? call.scale : 1 / std::sqrt(static_cast<float>(head_dim));
  const std::int64_t rows = batch * queries * heads;
  Values values{std::vector<float>(static_cast<std::size_t>(rows * value_dim)), {}};
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t s = 0; s < queries; ++s) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t query = (b * queries + s) * heads + h;
        const std::int64_t head = b * keys * kv_heads + h / (heads / kv_heads);
        const StandardRow row{.q = q.data() + query * head_dim,
                              .k = k.data() + head * head_dim,
                              .v = v.data() + head * value_dim,
                              .k_pitch = kv_heads * head_dim,
                              .v_pitch = kv_heads * value_dim,
                              .head_dim = head_dim,
                              .value_dim = value_dim,
                              .keys = visible_keys(call, s),
                              .position = s + keys - queries,
                              .slope = call.slopes.empty() ? 0.0f : call.slopes[static_cast<std::size_t>(h)]};
        values.lse.push_back(standard_row(row, call, scale, values.o.data() + query * value_dim));
      }
    }
  }
  return values;
}

Verdict judge(const Judged& judged, const Allowance& allowance) {
  const Values& exact = judged.exact;
  Verdict verdict;
  verdict.error = compare(judged.result.o, exact.o);
  verdict.standard = compare(yardstick(judged.standard.o, exact.o), exact.o);
  const bool has_lse = !judged.result.lse.empty();
  if (has_lse) verdict.lse_max_abs = lse_error(judged.result.lse, exact.lse);

  const std::vector<float> finite = finite_of(exact.o);
  const double scatter = 3 / std::sqrt(std::max<double>(1, static_cast<double>(finite.size())));
  const double rmse_limit =
      1.1 * (1 + scatter) * verdict.standard.rmse + 5e-7 * root_mean_square(finite) + allowance.noise;
  const double max_limit = allowance.max_factor * verdict.standard.max_abs + 1e-5;
  const std::vector<float> standard_lse = yardstick(judged.standard.lse, exact.lse);
  const double lse_limit = has_lse ? std::max(1e-4, 2 * lse_error(standard_lse, exact.lse)) : 0;
  std::ostringstream complaint;
  complaint.precision(3);
  if (!(verdict.error.rmse <= rmse_limit)) {
    complaint << "RMSE " << verdict.error.rmse << " is above " << rmse_limit << "; ";
  }
  if (!(verdict.error.max_abs <= max_limit)) {
    complaint << "largest error " << verdict.error.max_abs << " is above " << max_limit << "; ";
  }
  if (!(verdict.lse_max_abs <= lse_limit)) complaint << "lse is off by " << verdict.lse_max_abs << "; ";
  verdict.complaint = complaint.str();
  return verdict;
}

std::string padding_complaint(const HostTensor& o, const HostTensor& lse) {
  std::string complaint;
  if (!o.padding_untouched()) complaint += "memory between or around the rows of o was written; ";
  if (!lse.padding_untouched()) complaint += "memory between or around the elements of lse was written; ";
  return complaint;
}

Verdict verify(const Call& call, const Output& output) {
  Values result{output.o.to_dense(), call.want_lse ? output.lse.to_dense() : std::vector<float>()};
  Verdict verdict = judge({std::move(result), run_oracle(call), run_standard(call)});
  verdict.complaint += padding_complaint(output.o, output.lse);
  if (!verdict.complaint.empty()) verdict.complaint.resize(verdict.complaint.size() - 2);
  return verdict;
}

}  // namespace tandem::cli
