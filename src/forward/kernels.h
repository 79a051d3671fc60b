// The compiled kernels, as the launcher finds them.
#pragma once

#include <span>

#include "forward/table.h"
#include "forward/variant.h"

namespace tandem::forward {

/// A variant and the host handle of its kernel.
struct Kernel {
  ForwardVariant variant;
  int shared_bytes;
  bool stages_output;
  const void* handle;
};

/// The kernel that lists tiles of variable lengths (tile_list.h).
const void* list_kernel_handle();

/// Kernels of one head dim and purpose, each pair compiled in a file of its own.
template <int head_dim, Purpose purpose>
std::span<const Kernel> kernels();

}  // namespace tandem::forward
