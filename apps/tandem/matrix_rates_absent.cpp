// The twin of matrix_rates.cpp in a build without the Hopper kernels.
#include "bench.h"

namespace tandem::cli {

Exit run_matrix_rates(const BenchOptions&) {
  throw Failure(Exit::unavailable,
                "--wgmma needs a Hopper GPU, and this build has no Hopper kernels; configure with "
                "-DTANDEM_HOPPER=ON (needs the CUDA toolkit)");
}

}  // namespace tandem::cli
