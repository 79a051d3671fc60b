// The compiled kernels, as the launcher finds them.
#pragma once

#include <array>
#include <span>

#include "backward/table.h"
#include "backward/variant.h"

namespace tandem::backward {

/// A variant and the host handle of its kernel.
struct CompiledKernel {
  BackwardVariant variant;
  int shared_bytes;
  const void* handle;
};

/// Host handles of the kernels before and after the products, of one operand type.
struct CompiledHelpers {
  hw::Operand operand;
  const void *prepare, *finish, *clear;
};

/// Kernels of one head dim, each compiled in a file of its own.
template <int head_dim>
std::span<const CompiledKernel> kernels();
template <int head_dim>
std::span<const CompiledHelpers> helpers();

}  // namespace tandem::backward
