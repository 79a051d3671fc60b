// The machine's own limit: fp32 multiply-adds on all cores, from registers alone.
#pragma once

namespace tandem::bench {

/// GFLOP/s of one sample of some 50 ms, with the instruction set that the CPU backend uses.
double peak_fma_sample(int threads);

}  // namespace tandem::bench
