// Extent: the bytes that strided elements cover, and what can be said about two of them sharing one.
#pragma once

#include <cstdint>

#include "core/tensor_list.h"

namespace tandem::api {

/// Bytes from a region's data pointer: its elements lie in [low, high). Empty as low == high.
struct Extent {
  std::int64_t low, high;
};

/// False if the number of bytes or an offset does not fit 63 bits.
bool extent_of(const core::Region& region, Extent* extent);

bool is_empty(const core::Region& region);

/// True if two elements share an address. Where finding out would take more than some thousands of steps
/// (sizes of thousands with strides that don't nest), false too.
bool overlaps_itself(const core::Region& region);

/// True if the two regions share an address; false too, as above. Interleaved tensors, for example packed q,
/// k and v, do not.
bool overlap(const core::Region& a, const core::Region& b);

}  // namespace tandem::api
