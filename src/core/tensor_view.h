// TensorView: a tensor as kernels see it that access it with ordinary loads and stores.
#pragma once

#include <cstdint>

#include <tandem/tandem.h>

namespace tandem::core {

/// Strides in elements. Rows are tokens, or what a kernel says: blocks of tokens, columns of a head. Of
/// caches, a page is a batch entry.
struct TensorView {
  void* data;  ///< nullptr: there is none
  std::int64_t batch_stride, row_stride, head_stride;

  static constexpr TensorView of(const tandem_tensor& t) {
    return {t.data, t.stride[0], t.stride[1], t.stride[2]};
  }
  /// Offset of a row's first element.
  constexpr std::int64_t at(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return batch * batch_stride + row * row_stride + head * head_stride;
  }
  /// Its address.
  template <typename Element>
  constexpr Element* row(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return static_cast<Element*>(data) + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

}  // namespace tandem::core
