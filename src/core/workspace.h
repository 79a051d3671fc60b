// How a workspace is laid out: its parts, and it itself, begin at multiples of 256 bytes.
#pragma once

#include <cstddef>

namespace tandem::core {

inline constexpr std::size_t workspace_alignment = 256;

/// What a part of so many bytes takes where another part follows.
constexpr std::size_t part_bytes(std::size_t bytes) {
  return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
}

}  // namespace tandem::core
