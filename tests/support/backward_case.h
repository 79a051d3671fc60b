// Problems of the backward pass for tests: one plain description, printable, and the tensors that belong to
// it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/backward_problem.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"

namespace tandem::test {

/// Everything that defines a problem, its values included.
struct BackwardCase {
  ForwardCase forward;  ///< shapes, mask, options, and layouts of q, k, v, o and lse
  bool dlse = false;    ///< a gradient of lse is given
  bool sinks = false;   ///< the forward has sinks, whose gradients are wanted
  bool deterministic = false;
  Layout dout = {}, dlse_layout = {}, dq = {}, dk = {}, dv = {};
};

std::ostream& operator<<(std::ostream& out, const BackwardCase& c);

/// A few elements, 0 too, or anything up to `max_len`.
std::int64_t random_length(Random& random, std::int64_t max_len);

/// Shapes, masks, groups, options and layouts of every kind; lengths up to `max_len`. Some rows see no key.
BackwardCase random_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len);

/// The same with layouts that TMA can take.
BackwardCase random_tma_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len);

/// The case's problem without memory, for what reads shapes only.
core::BackwardProblem shapes_of(const BackwardCase& c);

/// Tensors of a case: inputs filled, o and lse as the forward gives them in the case's dtype, outputs
/// poisoned.
struct BackwardTensors {
  explicit BackwardTensors(const BackwardCase& c);

  /// As api::validate_backward would build it, over these tensors.
  core::BackwardProblem problem() const;

  /// Sets o and lse to standard_forward's of q, k and v as they are now.
  void run_forward();

  /// Rows of q that see no key, and rows of k and v that nobody sees, hold NaN from now on; so do o, dout and
  /// dlse where q does, but for sinks, which read them. lse does not: a row without keys has -inf.
  void poison_unseen_rows();

  /// The gradient of a head's sink by its definition, over o, lse, dout and dlse as they are now, and the sum
  /// of its terms' magnitudes.
  struct SinkGradient {
    double gradient = 0, magnitude = 0;
  };
  SinkGradient sink_gradient(std::int64_t head) const;

  /// How far dsinks are from their definition over o, lse, dout and dlse as they are now, beyond what sums in
  /// fp32 lose. "" where they are not, or are not wanted.
  std::string dsinks_failure() const;

  BackwardCase setup;
  HostTensor q, k, v, o, lse, dout, dlse, dq, dk, dv;
  HostTensor sinks, dsinks;  ///< of heads, as the last dimension

 private:
  BackwardTensors(const BackwardCase& c, const core::BackwardProblem& shapes);
};

/// What is wrong with dsinks where the heads' gradients are these; none: they are not wanted. "" if nothing
/// is.
std::string failure_of_dsinks(const HostTensor& dsinks,
                              const std::vector<BackwardTensors::SinkGradient>& expected);

/// The arguments of a case as callers of the C interface say them, over its tensors.
struct BackwardArgs {
  explicit BackwardArgs(const BackwardTensors& tensors);
  BackwardArgs(const core::BackwardProblem& problem, const BackwardCase& setup);
  BackwardArgs(const BackwardArgs&) = delete;

  tandem_mask mask;
  tandem_varlen varlen{};
  tandem_backward_args args{};  ///< points to the mask above, and to the lengths where there are any
};

/// What gradients of normally distributed values are granted: rowsum(dout o) cancels with dout v^T, and a cap
/// makes the largest errors larger.
Allowance gradient_allowance(const core::BackwardProblem& problem);

}  // namespace tandem::test
