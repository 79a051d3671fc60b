// The compiled kernels, as the launcher finds them.
#pragma once

#include <span>

#include "merge/variant.h"

namespace tandem::merge {

/// A variant and the host handle of its kernel.
struct Kernel {
  MergeVariant variant;
  const void* handle;
};

std::span<const Kernel> kernels();

}  // namespace tandem::merge
