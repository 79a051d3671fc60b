#include "tests/fuzz/forward_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::fuzz {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Wide limit63 = Wide{1} << 63;

/// What a caller may have put where C++ expects an enumerator.
template <typename Enum>
int number(const Enum& value) {
  int result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

/// The bytes from the tensor's address that its elements lie in, and whether they fit 63 bits.
bool extent_of(const tandem_tensor& t, Wide* low, Wide* high) {
  const auto bytes = static_cast<Wide>(size_of(number(t.dtype)));
  Wide count = bytes;
  *low = 0, *high = bytes;
  for (int i = 0; i < 4; ++i) {
    count *= t.shape[i];
    if (count >= limit63) return false;
    const Wide reach = t.shape[i] == 1 ? 0 : (t.shape[i] - Wide{1}) * t.stride[i] * bytes;
    if (reach >= limit63 || reach < -limit63) return false;
    (reach < 0 ? *low : *high) += reach;
    if (*high >= limit63 || *low < -limit63) return false;
  }
  return true;
}

/// Whether two of the rows, which are sorted, share a byte.
bool any_meet(std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < rows.size(); ++i)
    if (rows[i].begin < rows[i - 1].end) return true;
  return false;
}

bool has_broadcast(const tandem_tensor& t) {
  for (int i = 0; i < 3; ++i)
    if (t.shape[i] > 1 && t.stride[i] == 0) return true;
  return false;
}

bool meets(const std::vector<Row>& a, const std::vector<Row>& b) {
  for (const Row& x : a)
    for (const Row& y : b)
      if (x.begin < y.end && y.begin < x.end) return true;
  return false;
}

}  // namespace

const std::byte* row_at(const tandem_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const auto step = [&t](int i, std::int64_t index) { return t.shape[i] == 1 ? 0 : index * t.stride[i]; };
  return static_cast<const std::byte*>(t.data) +
         (step(0, b) + step(1, s) + step(2, h)) * static_cast<std::int64_t>(size_of(t.dtype));
}

double value(const tandem_tensor& t, const std::byte* row, std::int64_t e) {
  return element(t.dtype, row + e * static_cast<std::int64_t>(size_of(t.dtype)));
}

bool has_elements(const tandem_tensor& t) {
  return t.shape[0] != 0 && t.shape[1] != 0 && t.shape[2] != 0 && t.shape[3] != 0;
}

bool is_dtype(const tandem_dtype& dtype) { return number(dtype) >= 1 && number(dtype) <= 3; }
bool is_fp32(const tandem_tensor& t) { return number(t.dtype) == TANDEM_FP32; }
bool same_dtype(const tandem_tensor& a, const tandem_tensor& b) { return number(a.dtype) == number(b.dtype); }

bool is_host_backend(const tandem_backend& backend) {
  const int kind = number(backend);
  return kind == TANDEM_BACKEND_AUTO || kind == TANDEM_BACKEND_CPU || kind == TANDEM_BACKEND_REFERENCE;
}

bool factors_hold(float scale, float softcap) {
  for (const float factor : {scale, softcap})
    if (!(factor >= 0 && factor <= 2.3e38f)) return false;
  return softcap == 0 || std::isfinite((scale > 0 ? scale : 1.0f) / softcap);
}

bool mask_holds(const tandem_mask* mask) {
  if (mask == nullptr) return true;
  if (mask->struct_size != sizeof(tandem_mask)) return false;
  const int kind = number(mask->kind);
  const std::int64_t left = mask->window_left, right = mask->window_right;
  if (kind == TANDEM_MASK_WINDOW) return left >= -1 && right >= -1;
  return (kind == TANDEM_MASK_FULL || kind == TANDEM_MASK_CAUSAL) && left == 0 && right == 0;
}

bool queries_and_keys_hold(const tandem_tensor& queries, const tandem_tensor& keys) {
  const std::int64_t *q = queries.shape, *k = keys.shape;
  for (int i = 0; i < 4; ++i)
    if (q[i] < 0 || k[i] < 0) return false;
  if (q[3] % 8 != 0 || q[3] < 8 || q[3] > 256 || k[3] != q[3]) return false;
  return k[2] == 0 ? q[2] == 0 : q[2] % k[2] == 0;
}

bool same_shape(const tandem_tensor& a, const tandem_tensor& b, int dimensions) {
  return std::equal(a.shape, a.shape + dimensions, b.shape);
}

bool memory_holds(const tandem_tensor& t) {
  if (!has_elements(t)) return true;
  if (t.shape[3] != 1 && t.stride[3] != 1) return false;
  Wide low = 0, high = 0;
  if (!extent_of(t, &low, &high)) return false;
  const Wide address = reinterpret_cast<std::uintptr_t>(t.data);
  return t.data != nullptr && address % static_cast<Wide>(size_of(number(t.dtype))) == 0 &&
         address + low >= 0 && address + high < (Wide{1} << 64);
}

Verdict overlaps_hold(const std::vector<const tandem_tensor*>& inputs,
                      const std::vector<const tandem_tensor*>& outputs) {
  constexpr std::size_t most = 600;
  std::vector<std::vector<Row>> earlier;
  for (const tandem_tensor* input : inputs) {
    const auto rows = rows_of(*input, most);
    if (!rows) return Verdict::unknown;
    earlier.push_back(*rows);
  }
  for (const tandem_tensor* output : outputs) {
    const auto rows = rows_of(*output, most);
    if (!rows) return Verdict::unknown;
    if (!rows->empty() && (has_broadcast(*output) || any_meet(*rows))) return Verdict::invalid;
    for (const std::vector<Row>& other : earlier)
      if (meets(*rows, other)) return Verdict::invalid;
    earlier.push_back(*rows);
  }
  return Verdict::valid;
}

std::size_t size_of(int dtype) { return dtype == TANDEM_FP32 ? 4 : 2; }

double element(tandem_dtype dtype, const std::byte* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  if (dtype == TANDEM_BF16) bits <<= 16;
  if (dtype != TANDEM_FP16) {
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return static_cast<double>(result);
  }
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  if (exponent == 31) return fraction == 0 ? sign * infinity : std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

std::optional<std::vector<Row>> rows_of(const tandem_tensor& t, std::size_t most) {
  std::vector<Row> rows;
  if (!has_elements(t)) return rows;
  const auto bytes = static_cast<Wide>(size_of(number(t.dtype)));
  std::int64_t sizes[3];
  Wide count = 1;
  for (int i = 0; i < 3; ++i) {
    sizes[i] = t.stride[i] == 0 ? 1 : t.shape[i];
    count *= sizes[i];
    if (count > static_cast<Wide>(most)) return std::nullopt;
  }
  for (std::int64_t b = 0; b < sizes[0]; ++b)
    for (std::int64_t s = 0; s < sizes[1]; ++s)
      for (std::int64_t h = 0; h < sizes[2]; ++h) {
        const Wide offset = Wide{b} * t.stride[0] + Wide{s} * t.stride[1] + Wide{h} * t.stride[2];
        const Wide begin = Wide{reinterpret_cast<std::uintptr_t>(t.data)} + offset * bytes;
        rows.push_back({begin, begin + t.shape[3] * bytes});
      }
  return rows;
}

Verdict judge(const tandem_forward_args& args) {
  const bool wants_lse = args.lse.data != nullptr;
  if (args.struct_size != sizeof args || !is_host_backend(args.backend)) return Verdict::invalid;
  if (!factors_hold(args.scale, args.softcap) || !mask_holds(args.mask)) return Verdict::invalid;
  if (!is_dtype(args.q.dtype) || (wants_lse && !is_fp32(args.lse))) return Verdict::invalid;
  for (const tandem_tensor* t : {&args.k, &args.v, &args.o})
    if (!same_dtype(*t, args.q)) return Verdict::invalid;
  if (!queries_and_keys_hold(args.q, args.k) || args.k.shape[0] != args.q.shape[0]) return Verdict::invalid;
  if (!same_shape(args.o, args.q, 4) || !same_shape(args.v, args.k, 4)) return Verdict::invalid;
  if (wants_lse && (!same_shape(args.lse, args.q, 3) || args.lse.shape[3] != 1)) return Verdict::invalid;
  std::vector<const tandem_tensor*> outputs = {&args.o};
  if (wants_lse) outputs.push_back(&args.lse);
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o, wants_lse ? &args.lse : &args.o})
    if (!memory_holds(*t)) return Verdict::invalid;
  return overlaps_hold({&args.q, &args.k, &args.v}, outputs);
}

Keys keys_of(const tandem_forward_args& args, std::int64_t query) {
  return keys_of(args.mask, args.q.shape[1], args.k.shape[1], query);
}

Keys keys_of(const tandem_mask* mask, std::int64_t q_len, std::int64_t k_len, std::int64_t query) {
  const Wide position = Wide{query} + k_len - q_len;
  Wide begin = 0, end = k_len;
  if (mask != nullptr && mask->kind == TANDEM_MASK_CAUSAL) end = position + 1;
  if (mask != nullptr && mask->kind == TANDEM_MASK_WINDOW) {
    if (mask->window_left != TANDEM_UNLIMITED) begin = position - mask->window_left;
    if (mask->window_right != TANDEM_UNLIMITED) end = position + mask->window_right + 1;
  }
  begin = std::clamp(begin, Wide{0}, Wide{k_len});
  end = std::clamp(end, begin, Wide{k_len});
  return {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)};
}

Result attend(const tandem_forward_args& args, std::int64_t b, std::int64_t i, std::int64_t h) {
  const std::int64_t d = args.q.shape[3], kv_head = h / (args.q.shape[2] / args.k.shape[2]);
  const double scale = args.scale > 0 ? args.scale : 1 / std::sqrt(static_cast<double>(d));
  const Keys keys = keys_of(args, i);
  const std::byte* query = row_at(args.q, b, i, h);
  std::vector<double> scores;
  double highest = -infinity;
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const std::byte* row = row_at(args.k, b, key, kv_head);
    double score = 0;
    for (std::int64_t e = 0; e < d; ++e) score += value(args.q, query, e) * value(args.k, row, e);
    score *= scale;
    if (args.softcap > 0) score = args.softcap * std::tanh(score / args.softcap);
    scores.push_back(score);
    highest = std::isnan(score) ? score : std::max(highest, score);
  }
  Result result{std::vector<double>(static_cast<std::size_t>(d), 0.0), -infinity};
  if (highest == -infinity) return result;
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const std::byte* row = row_at(args.v, b, key, kv_head);
    const double weight = scores[static_cast<std::size_t>(key - keys.begin)] / sum;
    for (std::int64_t e = 0; e < d; ++e)
      result.o[static_cast<std::size_t>(e)] += weight * value(args.v, row, e);
  }
  result.lse = highest + std::log(sum);
  return result;
}

}  // namespace tandem::fuzz
