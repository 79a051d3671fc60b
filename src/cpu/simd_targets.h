// Which instruction sets the fast backend is compiled for; to include before any header of Highway.
#pragma once

// Vectors of unknown length can't stand in arrays, which the micro-kernel keeps its sums in.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
