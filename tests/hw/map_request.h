// What a test tells TMA of a tensor, on either machine.
#pragma once

#include <cstdint>

#include "hw/types.h"

namespace tandem::test {

/// A tensor of 16-bit words or fp32 in global memory, and the box to load or store of it; innermost dimension
/// first.
struct MapRequest {
  const void* address;            ///< a multiple of 16
  std::uint64_t dims[5];          ///< in elements
  std::uint64_t stride_bytes[4];  ///< of all but the innermost; multiples of 16
  std::uint32_t box[5];           ///< in elements
  hw::Swizzle swizzle = hw::Swizzle::bytes128;
  std::uint32_t element_bytes = 2;  ///< or 4: fp32
  int rank = 4;                     ///< or 5
};

}  // namespace tandem::test
