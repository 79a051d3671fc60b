// Merging on all cores.
#include "cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int block_columns = 256;  // of a row, summed on the stack

template <typename Element>
Element rounded(float value) {
  return Element::from(value);
}
template <>
float rounded<float>(float value) {
  return value;
}

/// What each part of a row counts for.
struct PartWeights {
  const float* lse;  ///< of part 0
  std::int64_t stride, parts;
  float base = 0, sum = 0;  ///< the largest finite lse; sum of the weights

  PartWeights(const float* first, std::int64_t part_stride, std::int64_t count)
      : lse(first), stride(part_stride), parts(count) {
    float row_max = -infinity;
    for (std::int64_t part = 0; part < parts; ++part) row_max = std::max(row_max, lse[part * stride]);
    if (row_max > -infinity) base = row_max;
    for (std::int64_t part = 0; part < parts; ++part) sum += of(part);
  }
  float of(std::int64_t part) const { return std::exp(lse[part * stride] - base); }
  float merged_lse() const { return sum == 0 ? -infinity : base + std::log(sum); }
};

template <typename In, typename Out>
void merge_row(const core::MergeProblem& p, const std::int64_t (&at)[3]) {
  // Of no parts there may be no memory, whose address no offset may be added to.
  const float* first = p.parts == 0 ? nullptr : core::part_row<float>(p.lse_parts, p.lse_part_stride, 0, at);
  const PartWeights weights(first, p.lse_part_stride, p.parts);
  Out* out = core::row_of<Out>(p.o, at[0], at[1], at[2]);
  const float inverse = weights.sum == 0 ? 0 : 1 / weights.sum;
  for (std::int64_t begin = 0; begin < p.head_dim(); begin += block_columns) {
    const auto columns = static_cast<int>(std::min<std::int64_t>(block_columns, p.head_dim() - begin));
    float sums[block_columns] = {};
    for (std::int64_t part = 0; part < p.parts; ++part) {
      const float weight = weights.of(part);
      if (weight == 0) continue;  // its row may hold anything
      const In* in = core::part_row<In>(p.o_parts, p.o_part_stride, part, at) + begin;
      for (int i = 0; i < columns; ++i) sums[i] += weight * static_cast<float>(in[i]);
    }
    for (int i = 0; i < columns; ++i) out[begin + i] = rounded<Out>(inverse * sums[i]);
  }
  if (p.lse.data != nullptr) *core::row_of<float>(p.lse, at[0], at[1], at[2]) = weights.merged_lse();
}

template <typename In, typename Out>
void merge_rows(const core::MergeProblem& p) {
  constexpr std::int64_t task_rows = 64;
  for_each_task(core::ceil_div(p.rows(), task_rows), [&](std::int64_t task, int) {
    const std::int64_t end = std::min(p.rows(), (task + 1) * task_rows);
    for (std::int64_t row = task * task_rows; row < end; ++row) {
      const std::int64_t above = row / p.heads();
      merge_row<In, Out>(p, {above / p.length(), above % p.length(), row % p.heads()});
    }
  });
}

template <typename In>
void merge_from(const core::MergeProblem& p) {
  switch (p.o.dtype) {
    case TANDEM_BF16:
      return merge_rows<In, core::Bf16>(p);
    case TANDEM_FP16:
      return merge_rows<In, core::Fp16>(p);
    case TANDEM_FP32:
      return merge_rows<In, float>(p);
    case TANDEM_E4M3:
    case TANDEM_INT8:  // no merge has them
      break;
  }
}

}  // namespace

void merge(const core::MergeProblem& p) {
  switch (p.o_parts.dtype) {
    case TANDEM_BF16:
      return merge_from<core::Bf16>(p);
    case TANDEM_FP16:
      return merge_from<core::Fp16>(p);
    case TANDEM_FP32:
      return merge_from<float>(p);
    case TANDEM_E4M3:
    case TANDEM_INT8:
      break;
  }
}

}  // namespace tandem::cpu
