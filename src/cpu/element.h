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
    case TANDEM_FP32:
      break;
  }
  core::row_of<float>(t, b, s, h)[i] = rounded;
}

/// Element i of a token of a query head, a key or a value, as what it stands for (core/quantised.h).
inline double load_query(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
                         std::int64_t i) {
  return load(p.q, b, s, h, i) * p.quantisation.q.of(b, s, h, p.q_heads());
}
inline double load_key(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
                       std::int64_t i) {
  return load(p.k, b, s, h, i) * p.quantisation.k.of(b, s, h, p.kv_heads());
}
inline double load_value(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
                         std::int64_t i) {
  const double value =
      p.quantisation.v_transposed ? load(p.v, b, i, h, core::position_of_key(s)) : load(p.v, b, s, h, i);
  return value * p.quantisation.v.of(b, s, h, p.kv_heads());
}

}  // namespace tandem::cpu
