// Rows of tensors of any dtype in float64, for the oracles, or in fp32.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/element.h"

namespace tandem::cpu {

/// Row [b, s, h], of row.size() elements.
template <typename Real>
void load_row(const core::Tensor& t, std::int64_t b, std::int64_t s, std::int64_t h, std::span<Real> row) {
  const auto widen = [&](const auto* elements) {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(elements[i]);
  };
  switch (t.dtype) {
    case TANDEM_BF16:
      return widen(core::row_of<core::Bf16>(t, b, s, h));
    case TANDEM_FP16:
      return widen(core::row_of<core::Fp16>(t, b, s, h));
    case TANDEM_E4M3:
      return widen(core::row_of<core::E4m3>(t, b, s, h));
    case TANDEM_INT8:
      return widen(core::row_of<core::Int8>(t, b, s, h));
    case TANDEM_FP32:
      return widen(core::row_of<float>(t, b, s, h));
  }
}

/// Element `at` of rows [b, e, h], e of row.size() in turn; with two terms, with that of row row.size() + e.
template <typename Element, typename Real>
void load_column(const core::Tensor& t, std::int64_t b, std::int64_t h, std::int64_t at, int terms,
                 std::span<Real> row) {
  const auto of = [&](std::size_t e) {
    return static_cast<float>(core::row_of<Element>(t, b, static_cast<std::int64_t>(e), h)[at]);
  };
  for (std::size_t e = 0; e < row.size(); ++e) row[e] = terms == 2 ? of(e) + of(row.size() + e) : of(e);
}

template <typename Real>
void scale_row(float factor, std::span<Real> row) {
  if (factor == 1) return;
  for (Real& x : row) x *= factor;
}

/// A token of a query head, a key or a value, as what it stands for (core/quantised.h).
template <typename Real>
void load_query(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
                std::span<Real> row) {
  load_row(p.q, b, s, h, row);
  scale_row(p.quantisation.q.of(b, s, h, p.q_heads()), row);
}
template <typename Real>
void load_key(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
              std::span<Real> row) {
  load_row(p.k, b, s, h, row);
  scale_row(p.quantisation.k.of(b, s, h, p.kv_heads()), row);
}
template <typename Real>
void load_value(const core::ForwardProblem& p, std::int64_t b, std::int64_t s, std::int64_t h,
                std::span<Real> row) {
  if (p.quantisation.v_transposed) {
    const auto load =
        p.v.dtype == TANDEM_INT8 ? load_column<core::Int8, Real> : load_column<core::E4m3, Real>;
    load(p.v, b, h, core::position_of_key(s), p.quantisation.v_terms, row);
  } else {
    load_row(p.v, b, s, h, row);
  }
  scale_row(p.quantisation.v.of(b, s, h, p.kv_heads()), row);
  if (const float* shift = p.quantisation.v_shift.of(b, h, p.kv_heads()))
    for (std::size_t e = 0; e < row.size(); ++e) row[e] += shift[e];
}

/// Eight sums side by side, which the compiler keeps in vectors.
inline double dot(const double* a, const double* b, std::int64_t size) {
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= size; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  double sum = 0;
  for (; i < size; ++i) sum += a[i] * b[i];
  for (const double lane : sums) sum += lane;
  return sum;
}

inline void add_scaled(double factor, const double* from, double* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

}  // namespace tandem::cpu
