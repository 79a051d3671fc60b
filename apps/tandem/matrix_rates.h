// tandem bench --wgmma: how fast the matrix units are, instruction by instruction.
#pragma once

#include <string>

#include "failure.h"

namespace tandem::cli {

struct MatrixRatesOptions {
  std::string csv, commit, clock;  ///< as of tandem bench
};
/// Measures, prints a table and writes CSV. Throws Failure(unavailable) where there is no Hopper GPU.
Exit run_matrix_rates(const MatrixRatesOptions& options);

}  // namespace tandem::cli
