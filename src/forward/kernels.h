// The compiled kernels, as the launcher finds them.
#pragma once

#include <span>

#include "forward/variant.h"

namespace tandem::forward {

/// A variant and the host handle of its kernel.
struct Kernel {
  ForwardVariant variant;
  int shared_bytes;
  const void* handle;
};

/// Kernels of one head dim, each compiled in a file of its own.
std::span<const Kernel> kernels_d64();
std::span<const Kernel> kernels_d128();
std::span<const Kernel> kernels_d256();

}  // namespace tandem::forward
