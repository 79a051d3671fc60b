// Quantisations for tests: one plain description, printable, and the tensors that belong to it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/quantize_problem.h"
#include "quantize/variant.h"
#include "tests/support/forward_case.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

/// Everything that defines a quantisation, its values included.
struct QuantizeCase {
  tandem_dtype dtype = TANDEM_BF16;
  std::int64_t batch = 1, length = 1, heads = 1, head_dim = 64;
  bool by_column = false;
  int terms = 1;                  ///< two only by column
  tandem_dtype to = TANDEM_E4M3;  ///< integers only by key
  ScaleCase scale = {true, 128, 1};
  bool scale_given = false, hadamard = false;
  bool best_scale = false;  ///< only of e4m3 by key
  float amplitude = 448;    ///< a number of e4m3
  Layout x = {}, out = {};
  std::uint64_t seed = 1;       ///< of the values and of the signs
  std::int64_t rotary_dim = 0;  ///< 0: no rotary embedding; only by key
  bool interleaved = false;
  bool tables_of_dtype = false;  ///< else fp32
  bool positions_given = false;
  std::int64_t shift_heads = 0, k_shift_heads = 0;  ///< of the shifts; 0: none. Of k only by key
  static constexpr std::int64_t positions = 200;    ///< that the tables have
};

std::ostream& operator<<(std::ostream& out, const QuantizeCase& c);
/// Whether Hopper multiplies by WGMMA (quantize/variant.h).
bool is_by_products(const QuantizeCase& c);

/// What every backend can do: a scale for each entry, head and block of 128 tokens, the best for each token,
/// or given ones.
QuantizeCase random_quantize_case(std::uint64_t seed);
/// That of a kernel.
QuantizeCase random_quantize_case(const quantize::QuantizeVariant& variant, std::uint64_t seed);

/// Tensors of a case: inputs filled, with some outliers and blocks of zeros; outputs poisoned.
struct QuantizeTensors {
  explicit QuantizeTensors(const QuantizeCase& c);

  /// As api::validate_quantize would build it, over these tensors.
  core::QuantizeProblem problem() const;
  /// The same over tensors elsewhere, for example copies in device memory.
  core::QuantizeProblem problem(const core::Tensor& from, const core::Tensor& to,
                                const core::Tensor& scales) const;
  /// What element [b, s, h, i] of x stands for after the quantisation.
  double quantised(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const;

  QuantizeCase setup;
  HostTensor x, out, scale;
  HostTensor cos, sin;  ///< of rotary embedding
  std::vector<std::int32_t> first_positions;
  HostTensor shift, k_shift;  ///< of all entries, and of each
  HostTensor q_dot_k_shift;   ///< poisoned
};

/// Row [b, s, h] of x, multiplied by H diag(signs) / sqrt(d) as its definition says: H[i][j] =
/// (-1)^popcount(i & j).
std::vector<double> rotated_row(const QuantizeTensors& t, std::int64_t b, std::int64_t s, std::int64_t h);

/// The arguments as callers of the C interface say them; the backend is left at its default. `rotary` is
/// filled, and pointed to, where the problem has one.
tandem_quantize_args to_c(const core::QuantizeProblem& problem, tandem_rotary* rotary = nullptr);

/// Where outputs differ in any bit from `expected`, or cells outside of them were written; "" if nowhere.
/// Where rows are only multiplied by the matrix, WGMMA adds up in another order: an element in a thousand may
/// be its neighbour, and scales of integers may differ by a millionth. A best scale may be another one
/// whose squared error is 2 % larger, one in fifty whose is more.
std::string quantize_failure(const QuantizeTensors& after, const QuantizeTensors& expected);

}  // namespace tandem::test
