#include "tests/fuzz/oracle_eight_bit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

namespace tandem::fuzz {

namespace {

/// The exponent of the last bit of elements of about this size: of e4m3 three behind the first, and none
/// finer than 2^-9.
int last_bit(tandem_dtype dtype, double wanted) {
  if (dtype == TANDEM_INT8) return 0;
  return std::max(std::ilogb(wanted == 0 ? 0x1p-100 : wanted), -6) - 3;
}

/// Whether column i changes its sign: the top bit of output i, from 0, of SplitMix64.
bool is_negative(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (z ^ z >> 31) >> 63 != 0;
}

}  // namespace

double largest_element(tandem_dtype dtype) { return dtype == TANDEM_INT8 ? largest_int8 : largest_e4m3; }

bool is_rounded(tandem_dtype dtype, double element, double quotient, double error) {
  if (std::isnan(quotient)) return dtype == TANDEM_INT8 ? element == 0 : std::isnan(element);
  const double largest = largest_element(dtype), wanted = std::clamp(quotient, -largest, largest);
  return std::abs(element - wanted) <= std::ldexp(0.5, last_bit(dtype, wanted)) * (1 + 1e-6) + error;
}

double round_to_even(tandem_dtype dtype, double quotient) {
  if (std::isnan(quotient)) return dtype == TANDEM_INT8 ? 0 : quotient;
  const double largest = largest_element(dtype), wanted = std::clamp(quotient, -largest, largest);
  const int exponent = last_bit(dtype, wanted);
  return std::ldexp(std::nearbyint(std::ldexp(wanted, -exponent)), exponent);
}

double scale_for(double magnitude) {
  double scale = std::ldexp(1.0, std::ilogb(magnitude / largest_e4m3) + 2);
  while (magnitude <= largest_e4m3 * scale / 2) scale /= 2;
  return scale;
}

bool is_scale_for(tandem_dtype dtype, double scale, double largest, double error) {
  constexpr double least = 0x1p-100, relative = 0x1p-21;  // far from fp32's least; of a quotient in fp32
  if (largest == 0 && error == 0) return scale == 1;
  if (largest <= least) return true;
  if (dtype == TANDEM_INT8)
    return std::abs(scale - largest / largest_int8) <= relative * scale + error / largest_int8;
  return scale >= scale_for(std::max(largest - error, least)) && scale <= scale_for(largest + error);
}

Numbers times_hadamard(const Numbers& x, std::uint64_t seed) {
  Numbers product(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j) {
      const bool negative = (std::popcount(i & j) % 2 != 0) != is_negative(seed, j);
      product[i] += (negative ? -x[j] : x[j]) / std::sqrt(static_cast<double>(x.size()));
    }
  return product;
}

double largest_of(const Numbers& row) {
  double largest = 0;
  for (const double x : row) largest = std::isnan(x) ? x : std::max(largest, std::abs(x));
  return largest;
}

double scale_at(const tandem_tensor& scales, std::int64_t b, std::int64_t s, std::int64_t h) {
  if (scales.data == nullptr) return 1;
  const auto index = [&scales](int i, std::int64_t own) { return scales.shape[i] == 1 ? 0 : own; };
  return value(scales, row_at(scales, index(0, b), index(1, s), index(2, h)), 0);
}

std::int64_t place_of_key(std::int64_t key) {
  static constexpr std::int64_t order[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  return key / 16 * 16 + (std::find(std::begin(order), std::end(order), key % 16) - std::begin(order));
}

Numbers shift_at(const tandem_tensor& shift, std::int64_t b, std::int64_t h, std::int64_t heads) {
  return read_row(shift, shift.shape[0] == 1 ? 0 : b, 0, h / (heads / shift.shape[2]));
}

bool shift_holds(const tandem_tensor& shift, const tandem_tensor& of, bool any_divisor) {
  if (shift.data == nullptr) return true;
  const std::int64_t *own = shift.shape, heads = of.shape[2];
  if (number(shift.dtype) != TANDEM_FP32 || own[1] != 1 || own[3] != of.shape[3]) return false;
  if (own[0] != 1 && own[0] != of.shape[0]) return false;
  if (own[2] != 1 && own[2] != heads && !(any_divisor && own[2] > 0 && heads % own[2] == 0)) return false;
  return memory_holds(shift);
}

bool dots_hold(const tandem_tensor& dots, const tandem_tensor& q) {
  if (dots.data == nullptr) return true;
  return number(dots.dtype) == TANDEM_FP32 && std::equal(dots.shape, dots.shape + 3, q.shape) &&
         dots.shape[3] == 1 && memory_holds(dots);
}

bool scales_hold(const tandem_tensor& scales, std::int64_t block, const tandem_tensor& tokens,
                 std::initializer_list<std::int64_t> heads) {
  if (block < 0) return false;
  if (scales.data == nullptr) return true;
  if (number(scales.dtype) != TANDEM_FP32 || scales.shape[3] != 1) return false;
  const Wide blocks = block == 0 ? 1 : (Wide{tokens.shape[1]} + block - 1) / block;
  if (scales.shape[1] != blocks || (scales.shape[0] != 1 && scales.shape[0] != tokens.shape[0])) return false;
  if (scales.shape[2] != 1 && std::find(heads.begin(), heads.end(), scales.shape[2]) == heads.end())
    return false;
  return memory_holds(scales);
}

}  // namespace tandem::fuzz
