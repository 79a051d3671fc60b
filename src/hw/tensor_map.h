// TMA's view of a tensor in global memory.
#pragma once

#include "core/problem.h"
#include "core/rotary.h"
#include "core/status.h"
#include "hw/types.h"

namespace tandem::hw {

/// OK if TMA can address the tensor: strides that are multiples of 16 bytes, not negative and below 2^40,
/// dimensions of at most 2^28, an address aligned to 16. `name` is the argument's.
core::Status check_tensor(const char* name, const core::Tensor& tensor);

/// OK if the tables, if there are any, are aligned to 16 bytes, which kernels read at once.
core::Status check_rotary(const char* name, const core::Rotary& rotary);

/// Rows of 64 columns that one box has: consecutive positions of one head; or, of several heads (powers of
/// two, both numbers), all these heads at each position before the next position. A box of fewer rows than
/// heads has so many heads of one position.
struct BoxRows {
  int rows;
  int heads = 1;
  bool packed = false;  ///< origins are PackedOrigin; of one head, and of a tensor of one batch entry
  int columns = 0;      ///< where they are fewer than 64; a row still takes 128 bytes of shared memory
};

/// What the TMA of either machine is told: dimensions and box innermost first (head dim, sequence, head,
/// batch). Where boxes have several heads, head and sequence change places, since rows of a box lie in shared
/// memory in the order of its dimensions; origins of boxes (BoxOrigin) then have them exchanged as well.
struct TensorMapRequest {
  void* address;
  int rank;  ///< 4, of packed rows 5
  std::uint64_t dims[5];
  std::uint64_t stride_bytes[4];  ///< of all but the innermost dimension
  std::uint32_t box[5];
  Swizzle swizzle;
};

/// What Panels::columns is of rows of so many elements of 16 bits; narrow ones have fewer than tiles.
constexpr std::int32_t box_columns(std::int64_t head_dim, bool narrow) {
  if (!narrow) return Panels::all_columns;
  constexpr int step = 8;
  return static_cast<std::int32_t>((head_dim + step - 1) / step * step);
}
/// The box of a row's last columns: those behind whole boxes, or a whole one's.
constexpr BoxRows last_box(BoxRows box, std::int32_t columns) {
  box.columns = columns % Panels::width;
  return box;
}

/// A map of the tensor (shape b, s, h, d) with the 128-byte swizzle, of 8-bit elements in pairs; of fp32,
/// boxes are rows of 32 columns as they are, without a swizzle.
TensorMapRequest tensor_map_request(const core::Tensor& tensor, BoxRows box);

}  // namespace tandem::hw
