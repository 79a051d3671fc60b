// Kernels of the backward, head dim 192.
#include "backward/trampoline.cuh"

namespace tandem::backward {
template std::span<const CompiledKernel> kernels<192>();
template std::span<const CompiledHelpers> helpers<192>();
}  // namespace tandem::backward
