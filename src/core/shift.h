// Vectors that rows lack: what was taken off each before it was rounded to 8 bits, mostly the mean of K or V.
#pragma once

#include <cstdint>

#include "core/tensor_list.h"
#include "core/tile_scheduler.h"

namespace tandem::core {

/// fp32, batch x 1 x heads x d, batch and heads also fewer where they are shared; data == nullptr: none.
struct Shift {
  Tensor values = {};

  bool given() const { return values.data != nullptr; }
  /// Of head `head` of `heads`; nullptr: none.
  const float* of(std::int64_t batch, std::int64_t head, std::int64_t heads) const {
    if (!given()) return nullptr;
    return static_cast<const float*>(values.data) + batch * values.stride[0] +
           head * values.shape[2] / heads * values.stride[2];
  }
};

/// The same as kernels have it.
struct ShiftView {
  const float* data;  ///< nullptr: none
  std::int64_t batch_stride, head_stride;
  Divisor heads;  ///< heads that share one

  static ShiftView of(const Shift& shift, std::int64_t heads) {
    if (!shift.given()) return {};
    const Tensor& values = shift.values;
    const std::int64_t of_shift = values.shape[2] == 0 ? 1 : values.shape[2];
    return {static_cast<const float*>(values.data), values.stride[0], values.stride[2],
            Divisor(static_cast<int>(heads < of_shift ? 1 : heads / of_shift))};
  }
  /// Read only where there is one.
  constexpr const float* row(int batch, int head) const {
    return data + batch * batch_stride + heads.divide(head).quotient * head_stride;
  }
};

}  // namespace tandem::core
