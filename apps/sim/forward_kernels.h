// The compiled kernels, as the simulator's launcher finds them. One file for each head dim and purpose, like
// the .cu files.
#pragma once

#include <span>

#include "forward/arguments.h"
#include "forward/table.h"

namespace tandem::sim {

struct Kernel {
  forward::ForwardVariant variant;
  int shared_bytes;
  bool stages_output;
  void (*body)(const forward::ForwardArguments&);
};

/// Kernels of one head dim and purpose, each pair compiled in a file of its own.
template <int head_dim, forward::Purpose purpose>
std::span<const Kernel> kernels();

}  // namespace tandem::sim
