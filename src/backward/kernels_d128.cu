// Kernels of the backward, head dim 128.
#include "backward/trampoline.cuh"

namespace tandem::backward {
template std::span<const CompiledKernel> kernels<128>();
template std::span<const CompiledHelpers> helpers<128>();
}  // namespace tandem::backward
