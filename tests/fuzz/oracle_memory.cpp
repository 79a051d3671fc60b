#include "tests/fuzz/oracle_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::fuzz {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Wide limit63 = Wide{1} << 63;

/// The bytes from the tensor's address that its elements lie in, and whether their offsets fit 63 bits.
bool extent_of(const tandem_tensor& t, Wide* low, Wide* high) {
  const auto bytes = static_cast<Wide>(size_of(number(t.dtype)));
  *low = 0, *high = bytes;
  for (int i = 0; i < 4; ++i) {
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

std::byte* row_at(const tandem_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const auto step = [&t](int i, std::int64_t index) {
    return t.shape[i] == 1 ? 0 : Wide{index} * t.stride[i];
  };
  const Wide offset = (step(0, b) + step(1, s) + step(2, h)) * static_cast<Wide>(size_of(number(t.dtype)));
  return reinterpret_cast<std::byte*>(
      static_cast<std::uintptr_t>(Wide{reinterpret_cast<std::uintptr_t>(t.data)} + offset));
}

double value(const tandem_tensor& t, const std::byte* row, std::int64_t e) {
  return element(t.dtype, row + e * static_cast<std::int64_t>(size_of(t.dtype)));
}

Numbers read_row(const tandem_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::byte* row = row_at(t, b, s, h);
  Numbers numbers;
  for (std::int64_t e = 0; e < t.shape[3]; ++e) numbers.push_back(value(t, row, e));
  return numbers;
}

std::size_t row_bytes(const tandem_tensor& t) {
  return static_cast<std::size_t>(t.shape[3]) * size_of(t.dtype);
}

tandem_tensor as_tensor(const float* numbers, std::int64_t heads) {
  return {const_cast<float*>(numbers), TANDEM_FP32, {1, 1, heads, 1}, {0, 0, 1, 1}};
}

bool has_elements(const tandem_tensor& t) {
  return t.shape[0] != 0 && t.shape[1] != 0 && t.shape[2] != 0 && t.shape[3] != 0;
}

bool size_holds(const tandem_tensor& t) {
  auto bytes = static_cast<Wide>(size_of(number(t.dtype)));
  for (const std::int64_t size : t.shape) {
    if (size < 0) return false;
    bytes *= std::max<std::int64_t>(size, 1);
    if (bytes >= limit63) return false;
  }
  return true;
}

bool memory_holds(const tandem_tensor& t) {
  if (!size_holds(t)) return false;
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

bool is_eight_bit(int dtype) { return dtype == TANDEM_E4M3 || dtype == TANDEM_INT8; }

std::size_t size_of(int dtype) { return dtype == TANDEM_FP32 ? 4 : is_eight_bit(dtype) ? 1 : 2; }

double element(tandem_dtype dtype, const std::byte* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  if (dtype == TANDEM_BF16) bits <<= 16;
  if (dtype == TANDEM_INT8) return static_cast<double>(bits) - (bits > 127 ? 256 : 0);
  if (dtype == TANDEM_E4M3) {
    const double sign = (bits >> 7) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 3 & 15), fraction = static_cast<int>(bits & 7);
    if (exponent == 15 && fraction == 7) return std::nan("");
    return sign * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
  }
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

}  // namespace tandem::fuzz
