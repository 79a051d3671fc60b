// A four-dimensional tensor that owns its memory on the host, in any order of dimensions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tandem/tandem.h>

namespace tandem::cli {

/// In the order of the C interface: batch, sequence, heads, head dim.
using Shape = std::array<std::int64_t, 4>;

/// a * b; throws a usage Failure if the product does not fit or an operand is negative.
std::int64_t checked_product(std::int64_t a, std::int64_t b);
std::int64_t count_of(const Shape& shape);

/// How a tensor lies in memory.
struct Layout {
  std::array<int, 4> order;      ///< dimensions, outermost first; head dim (3) is last
  std::int64_t row_padding = 0;  ///< unused elements after each row of head dim
  std::int64_t guard = 0;        ///< unused elements before and after the tensor

  static Layout bshd() { return {{0, 1, 2, 3}}; }
  static Layout bhsd() { return {{0, 2, 1, 3}}; }
};

struct HostTensor {
  tandem_dtype dtype = TANDEM_FP32;
  Shape shape{};
  Shape stride{};
  std::int64_t offset = 0;  ///< of element [0, 0, 0, 0] in storage, in elements
  std::vector<std::byte> storage;

  /// Storage filled with 0xff, which is NaN in every dtype: what nobody writes is seen.
  static HostTensor poisoned(tandem_dtype dtype, const Shape& shape, const Layout& layout);
  static HostTensor from_dense(tandem_dtype dtype, const Shape& shape, const Layout& layout,
                               std::span<const float> values);

  /// The tensor as the C interface takes it, for a copy of the storage at `base`.
  tandem_tensor view(void* base) const;
  /// The elements of one row of head dim.
  std::span<std::byte> row(std::int64_t b, std::int64_t s, std::int64_t h);
  std::span<const std::byte> row(std::int64_t b, std::int64_t s, std::int64_t h) const;
  /// All elements in the order b, s, h, d.
  std::vector<float> to_dense() const;
  /// Overwrites all elements, rounding to dtype, from the order b, s, h, d.
  void assign_dense(std::span<const float> values);
  /// Whether all that lies between the elements still holds the poison.
  bool padding_untouched() const;
};

/// The mean of each column over the tokens: fp32, b, 1, h, d, in the order of its dimensions. 0 where there
/// is no token.
HostTensor means(const HostTensor& tensor);

}  // namespace tandem::cli
