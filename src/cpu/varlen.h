// Variable lengths on the CPU: one problem of fixed lengths for each sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace tandem::cpu {

/// One sequence of a problem of variable lengths, as a problem of its own. Paged keys and values are
/// gathered.
class SequenceProblem {
 public:
  /// `index`: below problem.varlen.sequences. Lengths are clamped as on the device (core/varlen.h).
  SequenceProblem(const core::ForwardProblem& problem, std::int64_t index);

  SequenceProblem(const SequenceProblem&) = delete;
  SequenceProblem& operator=(const SequenceProblem&) = delete;

  const core::ForwardProblem& problem() const { return problem_; }

 private:
  core::ForwardProblem problem_;
  std::vector<std::byte> keys_, values_;
};

}  // namespace tandem::cpu
