// Which GPUs can run the kernels.
#pragma once

#include <string>

#include "core/status.h"

namespace tandem::hw {

/// OK for Hopper, compute capability 9.0: code for sm_90a runs nowhere else, newer GPUs included.
inline core::Status check_capability(int ordinal, int major, int minor) {
  if (major == 9 && minor == 0) return {};
  return {TANDEM_NO_DEVICE, "CUDA device " + std::to_string(ordinal) + " has compute capability " +
                                std::to_string(major) + "." + std::to_string(minor) +
                                "; the kernels need Hopper, 9.0. Use TANDEM_BACKEND_CPU with host memory"};
}

}  // namespace tandem::hw
