// From a problem of variable lengths to its kernels. Plain C++; no length is read on the host: all sizes are
// bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backward/plan.h"

namespace tandem::backward {

/// What there is at most.
struct VarlenBounds {
  std::int64_t sequences;
  std::int64_t seeing_rows;  ///< of statistics of a head, of queries that see a key, each sequence's padded
  std::int64_t unseeing_blocks, unseen_blocks;  ///< of 64 queries that see no key, and of keys nobody sees
  std::int64_t key_tiles, query_tiles;          ///< of all heads; the latter 0 where no kernel takes them
  std::int64_t parts;                           ///< of dQ: of all heads, 0 where nobody adds
  std::int64_t places;                          ///< of these that the ring holds

  /// Whether there is nothing to multiply.
  bool empty() const { return key_tiles == 0; }
};
VarlenBounds bounds_of(const core::BackwardProblem& problem, const Choice& choice);

/// What lies where in the workspace, in bytes.
struct VarlenLayout {
  std::size_t lse_log2, delta;
  std::size_t dq_sums, counters;
  std::size_t unseeing_lse_log2, unseeing_delta;                 ///< of no size without dsinks
  std::size_t key_tiles, query_tiles, seeing, unseeing, unseen;  ///< lists
  std::size_t end;
};
VarlenLayout varlen_layout(const core::BackwardProblem& problem, const Choice& choice);

/// The kernels of one call in a workspace of so many bytes as the layout says, aligned to 256.
class VarlenCall {
 public:
  VarlenCall(const core::BackwardProblem& problem, const Choice& choice, int sm_count, void* workspace);

  /// As Call's (plan.h).
  template <typename Result, typename Run>
  Result for_each_step(Run run) const {
    StepsInTurn<Result, Run> steps{run};
    steps.next(list());
    steps.next(prepare());
    if (!bounds_.empty()) {
      steps.next(products(choice_.keys));
      if (!choice_.adds_dq()) steps.next(products(choice_.queries));
    }
    if (problem_.dsinks != nullptr) steps.next(sinks());
    return steps.result;
  }

 private:
  Step<ListFamily> list() const;
  Step<PrepareFamily> prepare() const;
  Step<Family> products(const BackwardVariant& variant) const;
  Step<SinksFamily> sinks() const;
  core::Region workspace() const;
  Statistics statistics_at(std::size_t lse_log2, std::size_t delta) const;
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(workspace_) + offset);
  }

  core::BackwardProblem problem_;  ///< whose tensors have all sequences in one batch entry
  Choice choice_;
  int sm_count_;
  VarlenBounds bounds_;
  VarlenLayout layout_;
  VarlenLists lists_;
  PackedRows entries_q_, entries_k_;
  void* workspace_;
};

/// As supported() (plan.h), for a problem that variants serve and tensors that TMA can take.
core::Status varlen_supported(const core::BackwardProblem& problem);

/// Whether tiles and rows are as few as kernels can count.
core::Status check_rows(std::int64_t padded_q_rows, std::int64_t padded_k_rows);

}  // namespace tandem::backward
