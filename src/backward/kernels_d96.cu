// Kernels of the backward, head dim 96.
#include "backward/trampoline.cuh"

namespace tandem::backward {
template std::span<const CompiledKernel> kernels<96>();
template std::span<const CompiledHelpers> helpers<96>();
}  // namespace tandem::backward
