// Rotary embedding: the angles by which queries and keys are turned.
#pragma once

#include <cstdint>

#include <tandem/tandem.h>

#include "core/dtype.h"
#include "core/tensor_list.h"

namespace tandem::core {

/// Rotary embedding of q and of appended keys; cos == nullptr: none.
struct Rotary {
  const void* cos;  ///< positions x dim / 2, contiguous
  const void* sin;
  tandem_dtype dtype;  ///< of cos and sin: fp32 or that of q
  std::int64_t positions, dim;
  bool interleaved;
};

/// The same as kernels have it.
struct RotaryView {
  const void *cos, *sin;  ///< nullptr: none
  int positions, dim;
  bool fp32, interleaved;

  static constexpr RotaryView of(const Rotary& rotary) {
    return {rotary.cos,
            rotary.sin,
            static_cast<int>(rotary.positions),
            static_cast<int>(rotary.dim),
            rotary.dtype == TANDEM_FP32,
            rotary.interleaved};
  }
};

/// Names a call's tables in its list, if it has any. Names: of the addresses as callers know them.
inline void add_rotary(TensorList& list, const Rotary& rotary, const char* cos_name, const char* sin_name) {
  if (rotary.cos == nullptr) return;
  const auto bytes = static_cast<std::int64_t>(size_of(rotary.dtype));
  const auto table = [&](const void* data) {
    return Region::of(data, bytes, rotary.positions, rotary.dim / 2, rotary.dim / 2);
  };
  list.add_array(cos_name, Role::input, table(rotary.cos));
  list.add_array(sin_name, Role::input, table(rotary.sin));
}

}  // namespace tandem::core
