// Types that the verbs and their callers share on both machines.
#pragma once

#include <cstdint>

namespace tandem::hw {

inline constexpr int warp_size = 32;
inline constexpr int warpgroup_size = 128;
/// Shared memory that one block of sm_90 may use.
inline constexpr int max_shared_bytes = 227 * 1024;

/// A transaction barrier in shared memory, 8 bytes.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
struct Barrier {
  std::uint64_t state;
};

/// A tensor map (CUtensorMap): what TMA knows of a tensor in global memory. Made by the launcher.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

/// A tensor whose rows come in boxes of 64 columns, and in one of those that a row has behind its last whole
/// box: a box that ends beyond its row takes longer (docs/performance/forward.md, Rows that are no lines).
struct Panels {
  static constexpr int width = 64;
  static constexpr int all_columns = 1 << 30;  ///< boxes are whole, wherever they end

  const TensorMap& whole;
  const TensorMap& last;
  int columns;  ///< of a row that boxes bring, in steps of 16 bytes

  /// Boxes of 64 columns alone.
  static constexpr Panels whole_ones(const TensorMap& map) { return {map, map, all_columns}; }

  /// Whether there is a box from `column` on, and whether it is a whole one.
  constexpr bool has(int column) const { return column < columns; }
  constexpr bool has_whole(int column) const { return column + width <= columns; }
};

/// Coordinates of a box as TMA takes them, innermost first.
struct BoxCoordinates {
  int rank;
  std::int32_t at[5];
};

/// Coordinates of a TMA box: innermost first (head dim, sequence, head, batch).
struct BoxOrigin {
  std::int32_t d, s, h, b;

  constexpr BoxOrigin right_by(std::int32_t columns) const { return {d + columns, s, h, b}; }
  constexpr BoxCoordinates coordinates() const { return {4, {d, s, h, b}}; }
};

/// The same where sequences lie one after another (BoxRows::packed): row s of the sequence that has `length`
/// rows and ends ahead of row `past`. Rows behind its last one are out of bounds.
///
/// TMA compares a coordinate with one bound for the whole map. So the map has packed_rows rows, more than
/// there are, and a sequence's last row is the last of these. Two more dimensions bring the address back: one
/// whose stride is 2^34 bytes less a row, so that packed_rows of them are 2^64, which is nothing, less
/// packed_rows rows; and one whose stride is a row.
struct PackedOrigin {
  std::int32_t d, s, h, length, past;

  // A constructor, so that four coordinates in braces are a BoxOrigin only.
  constexpr PackedOrigin(std::int32_t d, std::int32_t s, std::int32_t h, std::int32_t length,
                         std::int32_t past)
      : d(d), s(s), h(h), length(length), past(past) {}

  static constexpr std::int32_t packed_rows = 1 << 30;
  static constexpr std::uint64_t wrapping_bytes = std::uint64_t{1} << 34;  ///< packed_rows of them are 2^64

  constexpr PackedOrigin right_by(std::int32_t columns) const { return {d + columns, s, h, length, past}; }
  constexpr BoxCoordinates coordinates() const {
    return {5, {d, packed_rows - length + s, h, packed_rows, past}};
  }
};

/// Operand types of the matrix units. e4m3 and int8: 8 bits, of WGMMA only.
enum class Operand { bf16, fp16, e4m3, int8 };
constexpr bool is_16_bit(Operand operand) { return operand == Operand::bf16 || operand == Operand::fp16; }

/// How the bytes of a tile are permuted in shared memory; the values are the descriptor's field (bits 62-63).
enum class Swizzle : std::uint32_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

/// Where the K dimension of a WGMMA operand in shared memory runs: contiguous (K-major) or across rows
/// (MN-major, "transposed").
enum class Major : int { k = 0, mn = 1 };

/// How long L2 keeps what TMA loads or stores: evict_first is for bytes that nobody reads again, evict_last
/// for those that others will.
enum class CachePolicy : int { normal, evict_first, evict_last };

/// The same as instructions take it (l2_policy). The normal one is none: with a hint that says "normal",
/// decoding steps whose row tiles share keys took 8 % longer.
struct L2Policy {
  std::uint64_t bits = 0;
  bool given = false;
};

/// What a WGMMA does with the accumulators that it finds.
enum class Accumulate : int { overwrite = 0, add = 1 };

/// Matrix descriptor of a WGMMA operand in shared memory.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor
struct MatrixDescriptor {
  std::uint64_t bits;

  /// `address` and both strides are in bytes, multiples of 16. Leading: between swizzle atoms along the
  /// contiguous dimension (read only for MN-major operands wider than one atom). Stride: between atoms across
  /// it.
  static constexpr MatrixDescriptor make(std::uint32_t address, std::uint32_t leading_bytes,
                                         std::uint32_t stride_bytes, Swizzle swizzle) {
    const auto field = [](std::uint32_t bytes) {
      return static_cast<std::uint64_t>((bytes & 0x3ffffu) >> 4);
    };
    return {field(address) | field(leading_bytes) << 16 | field(stride_bytes) << 32 |
            static_cast<std::uint64_t>(swizzle) << 62};
  }
  /// The same operand, `bytes` further on.
  constexpr MatrixDescriptor advanced(std::uint32_t bytes) const { return {bits + (bytes >> 4)}; }
};

}  // namespace tandem::hw
