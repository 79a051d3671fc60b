// Decode kernels for head dim 128.
#include "decode/trampoline.cuh"

namespace tandem::decode {
std::span<const Kernel> kernels_d128() { return kernels<128>(); }
}  // namespace tandem::decode
