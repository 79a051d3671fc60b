// Which instruction sets the fast backend is compiled for; to include before any header of Highway.
#pragma once

// Vectors of unknown length can't stand in arrays, which the micro-kernel keeps its sums in.
#define TANDEM_UNSIZED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#ifdef TANDEM_SANITIZE  // under which each takes a minute to compile: the least and AVX2
#define HWY_DISABLED_TARGETS (TANDEM_UNSIZED_TARGETS | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS TANDEM_UNSIZED_TARGETS
#endif
