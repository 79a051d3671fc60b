// Single elements of tensors of any dtype, for code that need not be fast.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/problem.h"

namespace tandem::cpu {

/// Element [b, s, h, i].
inline double load(const core::Tensor& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) {
  switch (t.dtype) {
    case TANDEM_BF16:
      return static_cast<float>(core::row_of<core::Bf16>(t, b, s, h)[i]);
    case TANDEM_FP16:
      return static_cast<float>(core::row_of<core::Fp16>(t, b, s, h)[i]);
    case TANDEM_E4M3:
      return static_cast<float>(core::row_of<core::E4m3>(t, b, s, h)[i]);
    case TANDEM_INT8:
      return static_cast<float>(core::row_of<core::Int8>(t, b, s, h)[i]);
    case TANDEM_FP32:
      break;
  }
  return core::row_of<float>(t, b, s, h)[i];
}

/// Rounds `value` to the tensor's dtype.
inline void store(const core::Tensor& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i,
                  double value) {
  const auto rounded = static_cast<float>(value);
  switch (t.dtype) {
    case TANDEM_BF16:
      core::row_of<core::Bf16>(t, b, s, h)[i] = core::Bf16::from(rounded);
      return;
    case TANDEM_FP16:
      core::row_of<core::Fp16>(t, b, s, h)[i] = core::Fp16::from(rounded);
      return;
    case TANDEM_E4M3:
      core::row_of<core::E4m3>(t, b, s, h)[i] = core::E4m3::from(rounded);
      return;
    case TANDEM_INT8:
      core::row_of<core::Int8>(t, b, s, h)[i] = core::Int8::from(rounded);
      return;
    case TANDEM_FP32:
      break;
  }
  core::row_of<float>(t, b, s, h)[i] = rounded;
}

/// `value` as the dtype holds it.
inline float rounded(tandem_dtype dtype, double value) {
  float cell = 0;
  const core::Tensor tensor{&cell, dtype, {}, {}};
  store(tensor, 0, 0, 0, 0, value);
  return static_cast<float>(load(tensor, 0, 0, 0, 0));
}

}  // namespace tandem::cpu
