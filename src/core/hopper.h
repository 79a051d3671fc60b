// Numbers of the H100 and H200 that plans and their costs are made for.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Multiprocessors: no Hopper has more. Workspaces have room for these, and decisions are made for them where
/// there may be no device.
inline constexpr int hopper_sm_count = 132;

/// What L2 (50 MB) keeps of rows that blocks share, beside all else.
inline constexpr std::int64_t hopper_cached_bytes = std::int64_t{32} << 20;

}  // namespace tandem::core
