// MergeProblem: one validated merge of partial results, as every backend sees it.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem::core {

/// o = sum over parts of exp(lse_part - lse) * o_part with lse = log(sum over parts of exp(lse_part)). Built
/// by api::validate_merge only, so that shapes agree and strides of dimensions of size 1 are 0.
struct MergeProblem {
  std::int64_t parts;
  Tensor o_parts, lse_parts;                    ///< of part 0
  std::int64_t o_part_stride, lse_part_stride;  ///< elements from part to part
  Tensor o;
  Tensor lse;  ///< data == nullptr: not wanted

  std::int64_t batch() const { return o.shape[0]; }
  std::int64_t length() const { return o.shape[1]; }
  std::int64_t heads() const { return o.shape[2]; }
  std::int64_t head_dim() const { return o.shape[3]; }
  std::int64_t rows() const { return batch() * length() * heads(); }
};

inline TensorList tensors_of(const MergeProblem& p) {
  TensorList list;
  list.add("o_parts", Role::input, Region::of_parts(p.o_parts, p.parts, p.o_part_stride));
  list.add("lse_parts", Role::input, Region::of_parts(p.lse_parts, p.parts, p.lse_part_stride));
  list.add("o", Role::output, p.o);
  if (p.lse.data != nullptr) list.add("lse", Role::output, p.lse);
  return list;
}

/// Part `part` of a tensor whose parts are `stride` elements apart: element [b, s, h, 0].
template <typename Element>
const Element* part_row(const Tensor& parts, std::int64_t stride, std::int64_t part,
                        const std::int64_t (&at)[3]) {
  return row_of<const Element>(parts, at[0], at[1], at[2]) + part * stride;
}

}  // namespace tandem::core
