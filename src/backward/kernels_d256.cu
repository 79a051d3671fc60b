// Kernels of the backward, head dim 256.
#include "backward/trampoline.cuh"

namespace tandem::backward {
template std::span<const CompiledKernel> kernels<256>();
template std::span<const CompiledHelpers> helpers<256>();
}  // namespace tandem::backward
