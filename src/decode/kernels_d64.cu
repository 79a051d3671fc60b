// Decode kernels for head dim 64.
#include "decode/trampoline.cuh"

namespace tandem::decode {
std::span<const Kernel> kernels_d64() { return kernels<64>(); }
}  // namespace tandem::decode
