#include "decode_verify.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "element.h"

namespace tandem::cli {
namespace {

std::vector<float> floats_of(const HostTensor& tensor, const std::array<std::int64_t, 3>& at) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape[3]));
  decode(tensor.dtype, tensor.row(at[0], at[1], at[2]).data(), values);
  return values;
}

/// The row as a token at `position` has it: pairs of columns are rotated by the angles of the nearest
/// position in the tables.
std::vector<float> rotated(const DecodeCall& call, std::vector<float> row, std::int64_t position) {
  const std::int64_t positions = call.cos.shape[2], half = call.cos.shape[3];
  if (positions == 0) return row;
  const std::int64_t nearest = std::clamp<std::int64_t>(position, 0, positions - 1);
  const std::vector<float> cos = floats_of(call.cos, {0, 0, nearest}),
                           sin = floats_of(call.sin, {0, 0, nearest});
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = static_cast<std::size_t>(call.interleaved ? 2 * i : i);
    const auto second = static_cast<std::size_t>(call.interleaved ? 2 * i + 1 : i + half);
    const double x = row[first], y = row[second];
    const double c = cos[static_cast<std::size_t>(i)], s = sin[static_cast<std::size_t>(i)];
    row[first] = static_cast<float>(x * c - y * s);
    row[second] = static_cast<float>(x * s + y * c);
  }
  return row;
}

/// The key of one head of a token that the step appends, `added` tokens after the sequence's length,
/// unrounded.
std::vector<float> new_key(const DecodeCall& call, std::int64_t sequence, std::int64_t added,
                           std::int64_t head) {
  const std::int64_t position = call.keys(sequence) - call.new_len() + added;
  return rotated(call, floats_of(call.k_new, {sequence, added, head}), position);
}

/// Key and value rows of one head of a token after the step.
void put_token(const DecodeCall& call, std::int64_t sequence, std::int64_t token, std::vector<float>& k,
               std::vector<float>& v) {
  const std::int64_t added = token - (call.keys(sequence) - call.new_len());
  const auto [page, row] = call.place(sequence, token);
  for (std::int64_t head = 0; head < call.k_cache.shape[2]; ++head) {
    std::vector<float> key =
        added < 0 ? floats_of(call.k_cache, {page, row, head}) : new_key(call, sequence, added, head);
    for (float& value : key) value = round_to(call.k_cache.dtype, value);
    const std::vector<float> value = added < 0 ? floats_of(call.v_cache, {page, row, head})
                                               : floats_of(call.v_new, {sequence, added, head});
    k.insert(k.end(), key.begin(), key.end());
    v.insert(v.end(), value.begin(), value.end());
  }
}

/// Whether an appended row of keys is `expected` within one rounding of each element.
bool within_a_rounding(tandem_dtype dtype, const std::vector<float>& values,
                       const std::vector<float>& expected) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Products of fp32 angles cancel: what remains is off by roundings of the terms, here of size 1 or so.
    const double allowed = 2 * unit_roundoff(dtype) * std::abs(expected[i]) + 1e-6;
    if (!(std::abs(double{values[i]} - double{expected[i]}) <= allowed)) return false;
  }
  return true;
}

std::string cache_complaint(const DecodeCall& call, DecodeOutput output) {
  std::ostringstream complaint;
  for (std::int64_t b = 0; b < call.q.shape[0]; ++b)
    for (std::int64_t added = 0; added < call.new_len(); ++added)
      for (std::int64_t head = 0; head < call.k_cache.shape[2]; ++head) {
        const auto [page, row] = call.place(b, call.keys(b) - call.new_len() + added);
        const std::vector<float> k = floats_of(output.k_cache, {page, row, head});
        const std::vector<float> v = floats_of(output.v_cache, {page, row, head});
        if (!within_a_rounding(call.k_cache.dtype, k, new_key(call, b, added, head)) ||
            v != floats_of(call.v_new, {b, added, head}))
          complaint << "new token " << added << " of sequence " << b << " is wrong in the cache, head "
                    << head << "; ";
        // Put back, so that the rest compares as bytes.
        std::ranges::copy(call.k_cache.row(page, row, head), output.k_cache.row(page, row, head).begin());
        std::ranges::copy(call.v_cache.row(page, row, head), output.v_cache.row(page, row, head).begin());
      }
  if (output.k_cache.storage != call.k_cache.storage || output.v_cache.storage != call.v_cache.storage)
    complaint << "the cache was written where nothing was to be appended; ";
  return complaint.str();
}

void append(Values& all, const Values& one) {
  all.o.insert(all.o.end(), one.o.begin(), one.o.end());
  all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
}

}  // namespace

Call gathered(const DecodeCall& call, std::int64_t sequence, tandem_dtype q_dtype) {
  const std::int64_t keys = call.keys(sequence), queries = call.q.shape[1], heads = call.q.shape[2],
                     kv_heads = call.k_cache.shape[2], d = call.q.shape[3];
  std::vector<float> q, k, v;
  for (std::int64_t i = 0; i < queries; ++i)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::vector<float> row = rotated(call, floats_of(call.q, {sequence, i, h}), keys - queries + i);
      q.insert(q.end(), row.begin(), row.end());
    }
  for (std::int64_t token = 0; token < keys; ++token) put_token(call, sequence, token, k, v);
  Call one;
  one.q = HostTensor::from_dense(q_dtype, {1, queries, heads, d}, Layout::bshd(), q);
  one.k = HostTensor::from_dense(q_dtype, {1, keys, kv_heads, d}, Layout::bshd(), k);
  one.v = HostTensor::from_dense(q_dtype, {1, keys, kv_heads, d}, Layout::bshd(), v);
  one.mask = call.mask;
  one.scale = call.scale;
  one.softcap = call.softcap;
  return one;
}

Verdict verify(const DecodeCall& call, const DecodeOutput& output) {
  Judged judged{{output.o.to_dense(), call.want_lse ? output.lse.to_dense() : std::vector<float>()}, {}, {}};
  for (std::int64_t b = 0; b < call.q.shape[0]; ++b) {
    append(judged.exact, run_oracle(gathered(call, b, TANDEM_FP32)));
    append(judged.standard, run_standard(gathered(call, b, call.q.dtype)));
  }
  Verdict verdict = judge(judged);
  verdict.complaint += padding_complaint(output.o, output.lse) + cache_complaint(call, output);
  if (!verdict.complaint.empty()) verdict.complaint.resize(verdict.complaint.size() - 2);
  return verdict;
}

}  // namespace tandem::cli
