// The kernels of a call, one step each: what they are told, and what they touch. The same for uniform
// lengths (plan.h) and for variable ones (varlen_plan.h).
#pragma once

#include <cstdint>
#include <utility>

#include "backward/table.h"
#include "core/backward_problem.h"
#include "core/tensor_list.h"
#include "launch/record.h"

namespace tandem::backward {

/// One kernel of a call, and the memory that it may touch.
template <typename Family>
struct Step {
  launch::Record<Family> record;
  core::TensorList memory;
};

/// run(step) for one step after another that has blocks, until a result is not ok(); the last result.
template <typename Result, typename Run>
struct StepsInTurn {
  Run run;
  Result result{};

  template <typename Family>
  void next(Step<Family>&& step) {
    if (result.ok() && step.record.blocks > 0) result = run(std::move(step));
  }
};

/// Of the grid, for so many tiles, or as many at most. The kernel of queries has one more (queries_kernel.h).
int blocks_for(const BackwardVariant& variant, int tiles, int sm_count);

Extent extent_of(const core::BackwardProblem& problem);

/// All arguments but the tensor maps, the order of tiles, where dK and dV go, and what splits change.
BackwardArguments make_arguments(const core::BackwardProblem& problem, const Statistics& statistics);

/// A kernel with products: its blocks, and what it does to the workspace besides reading it.
struct Products {
  const BackwardVariant& variant;
  const BackwardArguments& arguments;
  int blocks;
  std::int64_t parts;  ///< of dQ that the ring holds
  core::Region workspace;
};
Step<Family> products_step(const core::BackwardProblem& problem, const Products& products);

/// The kernel ahead of the products.
Step<PrepareFamily> prepare_step(const core::BackwardProblem& problem, const RowsVariant& variant, int blocks,
                                 const PrepareArguments& arguments);
/// What it is told for all lengths: o, dout, lse and dlse.
PrepareArguments prepare_arguments(const core::BackwardProblem& problem, const Statistics& statistics);

/// Rows of statistics of each head: of queries that see a key, and of those that see none.
struct SinkRows {
  Statistics seeing, unseeing;
  std::int64_t seeing_rows, unseeing_rows;
  std::int64_t batch;
};
Step<SinksFamily> sinks_step(const core::BackwardProblem& problem, const SinkRows& rows,
                             const core::Region& workspace);

}  // namespace tandem::backward
