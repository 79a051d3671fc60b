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

/// Room for what SequenceProblem gathers and rotates, enough for each sequence of a problem. A call takes it
/// before it writes anything, so that where there is no memory outputs and caches stay as they were.
class SequenceMemory {
 public:
  explicit SequenceMemory(const core::ForwardProblem& problem,
                          RotatedQueries rotated = RotatedQueries::rounded);

  std::int64_t most_keys() const { return most_keys_; }  ///< of a sequence

 private:
  friend class SequenceProblem;
  RotatedQueries rotated_;
  std::int64_t most_keys_ = 0;
  std::vector<std::byte> queries_, keys_, values_;
};

/// One sequence of a problem of variable lengths, as a problem of its own. Paged keys and values are
/// gathered, and queries rotated, into memory that the next sequence takes again. What the call appends has
/// to be in the caches.
class SequenceProblem {
 public:
  /// `index`: below problem.varlen.sequences. Lengths are clamped as on the device (core/varlen.h). `memory`:
  /// made for this problem.
  SequenceProblem(const core::ForwardProblem& problem, std::int64_t index, SequenceMemory& memory);

  SequenceProblem(const SequenceProblem&) = delete;
  SequenceProblem& operator=(const SequenceProblem&) = delete;

  const core::ForwardProblem& problem() const { return problem_; }

 private:
  void find_keys(const core::ForwardProblem& whole, std::int64_t index, SequenceMemory& memory);
  void rotate_queries(const core::Rotary& rotary, SequenceMemory& memory);

  core::ForwardProblem problem_;
  std::int64_t first_position_ = 0;  ///< of the first key
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
