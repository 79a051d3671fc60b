// Four words of a list at once.
#pragma once

#include <cstdint>

#include "hw/hw.h"

namespace tandem::tile {

/// `to`: aligned to 16 bytes.
TANDEM_DEVICE void store_words(std::int32_t* to, int a, int b, int c, int d) {
  const std::uint32_t words[4] = {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b),
                                  static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(d)};
  hw::store_global(static_cast<void*>(to), words);
}

}  // namespace tandem::tile
