// The compiled kernels, as the launcher finds them.
#pragma once

#include <span>

#include "quantize/variant.h"

namespace tandem::quantize {

/// A variant and the host handle of its kernel.
struct Kernel {
  QuantizeVariant variant;
  int shared_bytes;
  const void* handle;
};

std::span<const Kernel> kernels();

}  // namespace tandem::quantize
