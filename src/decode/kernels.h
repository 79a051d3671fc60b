// The compiled kernels, as the launcher finds them.
#pragma once

#include <span>

#include "decode/variant.h"

namespace tandem::decode {

/// A variant and the host handle of its kernel.
struct Kernel {
  DecodeVariant variant;
  int shared_bytes;
  const void* handle;
};

/// Kernels of one head dim, each compiled in a file of its own.
std::span<const Kernel> kernels_d64();
std::span<const Kernel> kernels_d128();
std::span<const Kernel> kernels_d256();

/// Host handle of the kernel that makes a plan: (DecodeArguments, std::int32_t* plan, int grid), one block of
/// plan_threads threads.
const void* plan_kernel_handle();

}  // namespace tandem::decode
