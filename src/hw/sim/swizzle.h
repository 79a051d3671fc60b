// Addresses of operands in shared memory: swizzles and matrix descriptors.
#pragma once

#include <cstdint>

#include "hw/types.h"

namespace tandem::hw::sim {

/// Where TMA and WGMMA put the 16-byte chunk of an address: some of its bits 4-6 are XORed with bits 7-9.
constexpr std::uint32_t swizzled(std::uint32_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes128:
      return address ^ ((address >> 7 & 7) << 4);
    case Swizzle::bytes64:
      return address ^ ((address >> 7 & 3) << 4);
    case Swizzle::bytes32:
      return address ^ ((address >> 7 & 1) << 4);
    case Swizzle::none:
      break;
  }
  return address;
}

/// Bytes of a swizzle atom's row.
constexpr std::uint32_t row_bytes_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes128:
      return 128;
    case Swizzle::bytes64:
      return 64;
    case Swizzle::bytes32:
      return 32;
    case Swizzle::none:
      break;
  }
  return 16;
}

/// A matrix descriptor's fields, in bytes.
struct OperandLayout {
  std::uint32_t start, leading, stride, base_offset;
  Swizzle swizzle;

  static constexpr OperandLayout of(MatrixDescriptor descriptor) {
    const auto field = [&](int shift) {
      return static_cast<std::uint32_t>(descriptor.bits >> shift & 0x3fff) << 4;
    };
    return {field(0), field(16), field(32), static_cast<std::uint32_t>(descriptor.bits >> 49 & 7),
            static_cast<Swizzle>(descriptor.bits >> 62)};
  }

  /// Address of the 16-byte chunk with elements (row, 8 * half ... 8 * half + 7) of a K-major operand.
  constexpr std::uint32_t k_major(int row, int half) const {
    const auto r = static_cast<std::uint32_t>(row), h = static_cast<std::uint32_t>(half);
    const std::uint32_t along_k = swizzle == Swizzle::none ? h * leading : h * 16;
    return swizzled(start + r / 8 * stride + r % 8 * row_bytes_of(swizzle) + along_k, swizzle);
  }
  /// Address of the chunk with elements (k, 8 * group ... 8 * group + 7) of an MN-major operand.
  constexpr std::uint32_t mn_major(int k, int group) const {
    const auto row = static_cast<std::uint32_t>(k), chunk = static_cast<std::uint32_t>(group);
    const std::uint32_t row_bytes = row_bytes_of(swizzle), chunks = row_bytes / 16;
    return swizzled(
        start + chunk / chunks * leading + row / 8 * stride + row % 8 * row_bytes + chunk % chunks * 16,
        swizzle);
  }
};

}  // namespace tandem::hw::sim
