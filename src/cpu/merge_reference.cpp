// The float64 oracle of merging. Every line is the definition.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/element.h"
#include "cpu/merge.h"

namespace tandem::cpu {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Part `part` as a tensor of its own.
core::Tensor part_of(const core::Tensor& parts, std::int64_t stride, std::int64_t part) {
  core::Tensor tensor = parts;
  tensor.data =
      static_cast<char*>(parts.data) + part * stride * static_cast<std::int64_t>(core::size_of(parts.dtype));
  return tensor;
}

/// The merged row to `o`; returns its log-sum-exp. Parts without weight are not read.
double merge_row(const core::MergeProblem& p, const std::int64_t (&at)[3], double* o) {
  const auto [b, s, h] = at;
  double row_max = -infinity, row_sum = 0;
  bool nan = false;
  std::fill_n(o, p.head_dim(), 0.0);
  for (std::int64_t part = 0; part < p.parts; ++part) {
    const double lse = load(part_of(p.lse_parts, p.lse_part_stride, part), b, s, h, 0);
    row_max = std::max(row_max, lse);
    nan = nan || std::isnan(lse);
  }
  if (row_max == -infinity && !nan) return -infinity;
  for (std::int64_t part = 0; part < p.parts; ++part) {
    const double lse = load(part_of(p.lse_parts, p.lse_part_stride, part), b, s, h, 0);
    if (lse == -infinity) continue;
    const double weight = std::exp(lse - row_max);
    row_sum += weight;
    const core::Tensor own = part_of(p.o_parts, p.o_part_stride, part);
    for (std::int64_t i = 0; i < p.head_dim(); ++i) o[i] += weight * load(own, b, s, h, i);
  }
  for (std::int64_t i = 0; i < p.head_dim(); ++i) o[i] /= row_sum;
  return row_max + std::log(row_sum);
}

}  // namespace

ReferenceValues reference_merge_values(const core::MergeProblem& p) {
  const auto rows = static_cast<std::size_t>(p.rows()), d = static_cast<std::size_t>(p.head_dim());
  ReferenceValues values{std::vector<double>(rows * d), std::vector<double>(rows)};
  std::size_t row = 0;
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t s = 0; s < p.length(); ++s)
      for (std::int64_t h = 0; h < p.heads(); ++h, ++row)
        values.lse[row] = merge_row(p, {b, s, h}, values.o.data() + row * d);
  return values;
}

void reference_merge(const core::MergeProblem& p) {
  const ReferenceValues values = reference_merge_values(p);
  std::size_t row = 0, element = 0;
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t s = 0; s < p.length(); ++s)
      for (std::int64_t h = 0; h < p.heads(); ++h, ++row) {
        for (std::int64_t i = 0; i < p.head_dim(); ++i) store(p.o, b, s, h, i, values.o[element++]);
        if (p.lse.data != nullptr) store(p.lse, b, s, h, 0, values.lse[row]);
      }
}

}  // namespace tandem::cpu
