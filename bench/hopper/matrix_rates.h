// How fast the matrix units of a Hopper GPU are, instruction by instruction.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tandem::bench {

/// One instruction in one form, on every multiprocessor at once.
struct MatrixRate {
  std::string kind;   ///< wgmma or mma
  std::string dtype;  ///< bf16 or e4m3
  std::string shape;  ///< m64n8k16
  std::string
      form;         ///< of wgmma: ss, rs; of mma: registers, load_a, load_ab (by ldmatrix, each product anew)
  std::string sum;  ///< overwrite: D = A B; add: D += A B
  int warpgroups;   ///< that run it, of each multiprocessor
  double ms = 0;    ///< median of a launch
  double tflops = 0;  ///< TFLOP/s of that
};

/// "" where they can be measured; else why not.
std::string why_no_matrix_rates();

/// How many there are.
std::size_t matrix_rates();

/// Measures all of them, a few seconds' work; `before(index, what)` is called before each. Throws
/// std::runtime_error with the CUDA error.
std::vector<MatrixRate> measure_matrix_rates(
    const std::function<void(std::size_t, const std::string&)>& before);

}  // namespace tandem::bench
