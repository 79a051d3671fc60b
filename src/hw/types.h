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

/// Coordinates of a TMA box: innermost first (head dim, sequence, head, batch).
struct BoxOrigin {
  std::int32_t d, s, h, b;
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
