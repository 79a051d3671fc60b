// A tensor map as the simulator encodes it, and the rows of its boxes in global and shared memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hw/sim/swizzle.h"
#include "hw/types.h"

namespace tandem::hw::sim {

/// A tensor map in its 128 bytes.
struct EncodedMap {
  static constexpr std::uint64_t expected_mark = 0x7461'6e64'656d'0001;

  std::uint64_t mark, address, dims[5], stride_bytes[4];
  std::uint16_t box[5], element_bytes, swizzle, rank;

  static EncodedMap decode(const TensorMap& map) {
    EncodedMap encoded;
    std::memcpy(&encoded, &map, sizeof encoded);
    return encoded;
  }
  TensorMap encode() const {
    TensorMap map{};
    std::memcpy(&map, this, sizeof *this);
    return map;
  }

  bool valid() const { return mark == expected_mark; }
  std::uint32_t row_bytes() const { return std::uint32_t{box[0]} * element_bytes; }
  /// From a row of a box to the next in shared memory: of swizzled ones the swizzle's span.
  std::uint32_t pitch() const {
    return swizzle == static_cast<std::uint16_t>(Swizzle::none) ? row_bytes()
                                                                : row_bytes_of(static_cast<Swizzle>(swizzle));
  }
  /// From a box's first byte in shared memory to behind its last one.
  std::uint32_t span() const { return (rows() - 1) * pitch() + row_bytes(); }
  std::uint32_t rows() const { return std::uint32_t{box[1]} * box[2] * box[3] * box[4]; }
};
static_assert(sizeof(EncodedMap) <= sizeof(TensorMap));

/// What both TMA directions ask of coordinates, as the chip was seen to: the innermost one comes in steps of
/// 16 bytes.
inline bool starts_at_a_step(const EncodedMap& map, const BoxCoordinates& origin) {
  return origin.at[0] * static_cast<int>(map.element_bytes) % 16 == 0;
}

/// Ends the launch where coordinates are not those of the map.
void check_rank(const EncodedMap& map, const BoxCoordinates& origin);

/// One row of a box: of its bytes, [first, past) lie within the tensor, where `global` is the address of the
/// first.
struct BoxRow {
  static constexpr std::size_t max_bytes = 256 * 8;

  unsigned char* global;
  std::uint32_t first, past;

  bool empty() const { return first == past; }
  std::size_t bytes() const { return past - first; }

  static BoxRow of(const EncodedMap& map, const BoxCoordinates& origin, std::uint32_t row) {
    bool exists = true;
    std::uint64_t address = map.address;  // wraps, as the chip's
    std::uint32_t number = row;
    for (int i = 1; i < map.rank; number /= map.box[i], ++i) {
      const std::int64_t at = std::int64_t{origin.at[i]} + number % map.box[i];
      exists = exists && at >= 0 && at < static_cast<std::int64_t>(map.dims[i]);
      address += static_cast<std::uint64_t>(at) * map.stride_bytes[i - 1];
    }
    const std::int64_t size = map.element_bytes, column = origin.at[0], length = exists ? map.row_bytes() : 0;
    const std::int64_t first = std::clamp<std::int64_t>(-column * size, 0, length);
    const std::int64_t past =
        std::clamp<std::int64_t>((static_cast<std::int64_t>(map.dims[0]) - column) * size, first, length);
    address += static_cast<std::uint64_t>(column * size + first);
    return {reinterpret_cast<unsigned char*>(address), static_cast<std::uint32_t>(first),
            static_cast<std::uint32_t>(past)};
  }
};

/// Calls `visit(byte of the row, shared address)` for each 16 bytes of a row of a box at shared address
/// `box`.
template <typename Visit>
void for_each_chunk(const EncodedMap& map, std::uint32_t box, std::uint32_t row, Visit&& visit) {
  const std::uint32_t length = map.row_bytes();
  for (std::uint32_t i = 0; i < length; i += 16) {
    visit(i, swizzled(box + row * map.pitch() + i, static_cast<Swizzle>(map.swizzle)));
  }
}

}  // namespace tandem::hw::sim
