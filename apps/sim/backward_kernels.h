// The compiled kernels of the backward, as the simulator's launcher finds them. One file for each head dim,
// like the .cu files.
#pragma once

#include <span>

#include "backward/arguments.h"
#include "backward/variant.h"

namespace tandem::sim {

struct BackwardKernel {
  backward::BackwardVariant variant;
  int shared_bytes;
  void (*body)(const backward::BackwardArguments&);
};

/// The kernels before and after the products, of one operand type.
struct BackwardHelpers {
  hw::Operand operand;
  void (*prepare)(const backward::PrepareArguments&);
  void (*finish)(const backward::FinishArguments&);
  void (*clear)(const backward::ClearArguments&);
};

/// Kernels of one head dim, each compiled in a file of its own.
template <int head_dim>
std::span<const BackwardKernel> backward_kernels();
template <int head_dim>
std::span<const BackwardHelpers> backward_helpers();

}  // namespace tandem::sim
