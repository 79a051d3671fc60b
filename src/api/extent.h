// Extent: the bytes that a strided tensor covers, and what can be said about two elements sharing one.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem::api {

/// Bytes from the tensor's data pointer: its elements lie in [low, high). Empty as low == high.
struct Extent {
  std::int64_t low, high;
};

/// False if the number of bytes or an offset does not fit 64 bits.
bool extent_of(const core::Tensor& tensor, Extent* extent);

bool is_empty(const core::Tensor& tensor);

/// True if two elements share an address. Where finding out would take more than some thousands of steps
/// (sizes of thousands with strides that don't nest), false too.
bool overlaps_itself(const core::Tensor& tensor);

/// True if the two tensors share an address; false too, as above. Interleaved tensors, for example packed q,
/// k and v, do not.
bool overlap(const core::Tensor& a, const core::Tensor& b);

}  // namespace tandem::api
