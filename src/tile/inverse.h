// Division by a scale.
#pragma once

#include "hw/hw.h"

namespace tandem::tile {

/// 1 / scale, rounded to nearest: one step of Newton's, since a division is a call, which spills registers.
TANDEM_DEVICE float inverse_of_given(float scale) {
  const float near = hw::reciprocal(scale);
  return hw::fma(near, hw::fma(-scale, near, 1.f), near);
}

}  // namespace tandem::tile
