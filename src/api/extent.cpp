#include "api/extent.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "core/dtype.h"

namespace tandem::api {
namespace {

using core::Tensor;

std::int64_t element_size(const Tensor& tensor) {
  return static_cast<std::int64_t>(core::size_of(tensor.dtype));
}

/// Addresses [begin, end) of a tensor whose extent is known to fit.
struct Range {
  std::uintptr_t begin, end;
  bool contains(std::uintptr_t address) const { return begin <= address && address < end; }
};

Range range_of(const Tensor& tensor) {
  Extent extent{};
  extent_of(tensor, &extent);
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  return {data + static_cast<std::uintptr_t>(extent.low), data + static_cast<std::uintptr_t>(extent.high)};
}

/// True if every byte of the range belongs to an element. Dimensions of size 1 or stride 0 add nothing.
bool is_dense(const Tensor& tensor) {
  struct Dimension {
    std::int64_t stride, size;
  };
  std::array<Dimension, 4> dimensions;
  for (int i = 0; i < 4; ++i) dimensions[i] = {std::abs(tensor.stride[i]), tensor.shape[i]};
  std::sort(dimensions.begin(), dimensions.end(), [](auto a, auto b) { return a.stride < b.stride; });
  std::int64_t covered = 1;
  for (const auto [stride, size] : dimensions) {
    if (size == 1 || stride == 0) continue;
    if (stride > covered) return false;
    covered = stride * (size - 1) + covered;
  }
  return true;
}

}  // namespace

bool is_empty(const Tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + 4, [](std::int64_t size) { return size == 0; });
}

bool extent_of(const Tensor& tensor, Extent* extent) {
  *extent = {0, 0};
  if (is_empty(tensor)) return true;
  const std::int64_t bytes = element_size(tensor);
  std::int64_t count = bytes;
  Extent offsets{0, bytes};
  for (int i = 0; i < 4; ++i) {
    if (__builtin_mul_overflow(count, tensor.shape[i], &count)) return false;
    std::int64_t reach = 0;
    if (tensor.shape[i] == 1) continue;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &reach)) return false;
    if (__builtin_mul_overflow(reach, bytes, &reach)) return false;
    std::int64_t& end = reach < 0 ? offsets.low : offsets.high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  *extent = offsets;
  return true;
}

bool overlaps_itself(const Tensor& tensor) {
  if (is_empty(tensor)) return false;
  // Rows of shape[3] contiguous elements: two rows closer than that share elements.
  const std::int64_t row = tensor.shape[3];
  for (int i = 0; i < 3; ++i)
    if (tensor.shape[i] > 1 && std::abs(tensor.stride[i]) < row) return true;
  // Two dimensions meet where a * stride_i == b * stride_j; the smallest such a and b are the strides over
  // their gcd.
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < i; ++j) {
      if (tensor.shape[i] == 1 || tensor.shape[j] == 1) continue;
      const std::int64_t divisor = std::gcd(tensor.stride[i], tensor.stride[j]);
      if (std::abs(tensor.stride[j] / divisor) < tensor.shape[i] &&
          std::abs(tensor.stride[i] / divisor) < tensor.shape[j])
        return true;
    }
  return false;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Range own = range_of(a), other = range_of(b);
  if (own.end <= other.begin || other.end <= own.begin) return false;
  if (own.begin == other.begin || own.end == other.end) return true;  // both ends of a range are elements
  const auto covers = [](const Tensor& dense, Range range, Range elements) {
    return is_dense(dense) && (range.contains(elements.begin) || range.contains(elements.end - 1));
  };
  return covers(a, own, other) || covers(b, other, own);
}

}  // namespace tandem::api
