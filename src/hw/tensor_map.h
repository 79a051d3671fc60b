// TMA's view of a tensor in global memory.
#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "hw/types.h"

namespace tandem::hw {

/// OK if TMA can address the tensor: strides that are multiples of 16 bytes, not negative and below 2^40,
/// dimensions below 2^31, an address aligned to 16. `name` is the argument's.
core::Status check_tensor(const char* name, const core::Tensor& tensor);

/// What the TMA of either machine is told: dimensions and box innermost first (head dim, sequence, head,
/// batch).
struct TensorMapRequest {
  void* address;
  std::uint64_t dims[4];
  std::uint64_t stride_bytes[3];  ///< of all but the innermost dimension
  std::uint32_t box[4];
};

/// A map that loads `rows` x 64 boxes of the tensor (shape b, s, h, d) with the 128-byte swizzle.
TensorMapRequest tensor_map_request(const core::Tensor& tensor, int rows);

}  // namespace tandem::hw
