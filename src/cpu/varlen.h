// Variable lengths on the CPU: one problem of fixed lengths for each sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/backward_problem.h"
#include "core/problem.h"

namespace tandem::cpu {

/// What rotated queries are rounded to: q's dtype, as a fast backend has them, or fp32, as the oracle.
enum class RotatedQueries { rounded, in_fp32 };

/// One sequence of a problem of variable lengths, as a problem of its own. Paged keys and values are
/// gathered, and queries rotated. What the call appends has to be in the caches.
class SequenceProblem {
 public:
  /// `index`: below problem.varlen.sequences. Lengths are clamped as on the device (core/varlen.h).
  SequenceProblem(const core::ForwardProblem& problem, std::int64_t index,
                  RotatedQueries rotated = RotatedQueries::rounded);

  SequenceProblem(const SequenceProblem&) = delete;
  SequenceProblem& operator=(const SequenceProblem&) = delete;

  const core::ForwardProblem& problem() const { return problem_; }

 private:
  void find_keys(const core::ForwardProblem& whole, std::int64_t index);
  void rotate_queries(const core::Rotary& rotary, RotatedQueries rotated);

  core::ForwardProblem problem_;
  std::int64_t first_position_ = 0;  ///< of the first key
  std::vector<std::byte> queries_, keys_, values_;
};

/// How many sequences a problem of the backward pass has as problems of their own: one of fixed lengths is
/// its own only one.
std::int64_t sequences_of(const core::BackwardProblem& problem);
/// One of them: rows of the whole problem's tensors. Its lengths are clamped too. dsinks is not wanted of it,
/// since it is a sum over all sequences. Allocates nothing.
core::BackwardProblem sequence_of(const core::BackwardProblem& problem, std::int64_t index);

/// Writes the new keys, rotated, and values of all sequences to the caches. What belongs in an entry or a
/// page that does not exist, or has no room, is lost.
void append(const core::ForwardProblem& problem);

}  // namespace tandem::cpu
