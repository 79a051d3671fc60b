// Decode kernels for head dim 256.
#include "decode/trampoline.cuh"

namespace tandem::decode {
std::span<const Kernel> kernels_d256() { return kernels<256>(); }
}  // namespace tandem::decode
