// Merges of partial results for tests: one plain description, printable, and the tensors that belong to it.
#pragma once

#include <ostream>
#include <string>

#include <tandem/tandem.h>

#include "core/merge_problem.h"
#include "tests/support/host_tensor.h"
#include "tests/support/standard.h"

namespace tandem::test {

/// Everything that defines a merge, its values included. About a quarter of all parts of rows, and all parts
/// of some rows, have seen no key.
struct MergeCase {
  tandem_dtype in = TANDEM_FP32, out = TANDEM_FP32;
  std::int64_t parts = 2, batch = 1, length = 1, heads = 1, head_dim = 64;
  bool lse = true;
  Layout o_parts = {}, lse_parts = {}, o = {}, lse_layout = {};
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const MergeCase& c);

/// Dtypes, shapes, values and layouts that every backend can take: rows are multiples of 16 bytes apart.
MergeCase random_merge_case(std::uint64_t seed);

/// Tensors of a case: outputs are poison, and so are the rows of parts that have seen no key. Parts lie one
/// after another in the batch dimension.
struct MergeTensors {
  explicit MergeTensors(const MergeCase& c);

  /// As api::validate_merge would build it, over these tensors.
  core::MergeProblem problem() const;
  /// The same over tensors elsewhere, for example copies in device memory.
  core::MergeProblem problem(const core::Tensor& all_o, const core::Tensor& all_lse, const core::Tensor& to,
                             const core::Tensor& to_lse) const;

  MergeCase setup;
  HostTensor o_parts, lse_parts, o, lse;
};

/// The arguments as callers of the C interface say them; the backend is left at its default.
tandem_merge_args to_c(const core::MergeProblem& problem);

/// The same-precision standard implementation: the log-sum-exp first, then a sum, all in fp32.
ForwardValues standard_merge(const core::MergeProblem& problem);

/// What is wrong with the outputs `after` a merge whose oracle's values are `reference`; "" if nothing is.
std::string merge_failure(const MergeTensors& after, const ForwardValues& reference);

}  // namespace tandem::test
