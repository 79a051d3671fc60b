// Kernels of the backward, head dim 64.
#include "backward/trampoline.cuh"

namespace tandem::backward {
template std::span<const CompiledKernel> kernels<64>();
template std::span<const CompiledHelpers> helpers<64>();
}  // namespace tandem::backward
