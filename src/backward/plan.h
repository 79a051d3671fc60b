// From a problem to variants and their arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backward/arguments.h"
#include "backward/table.h"
#include "core/backward_problem.h"
#include "core/status.h"
#include "hw/tensor_map.h"

namespace tandem::backward {

/// The kernels that serve a problem.
struct Choice {
  BackwardVariant keys;
  BackwardVariant queries;  ///< runs only where `keys` does not add dQ
  bool found;

  bool adds_dq() const { return keys.dq_sums == DqSums::added; }
};
Choice choose(const core::BackwardProblem& problem);
/// Those of a call in which the variant runs: for study and tests.
Choice choice_with(const BackwardVariant& variant);

/// Every variant that is built, head dims ascending.
const std::vector<BackwardVariant>& all_variants();

/// Where no kernel is found: what was asked for, and what is built.
core::Status no_variant(const core::BackwardProblem& problem);

/// The problem without the first queries, which see no key, and the first keys, which nobody sees; whatever
/// they hold, it is not read. Their gradients are 0.
struct Cropped {
  core::BackwardProblem problem;
  std::int64_t unseeing_queries, unseen_keys;

  bool empty() const { return problem.q.shape[1] == 0 || problem.k.shape[1] == 0; }
};
Cropped crop(const core::BackwardProblem& problem);

/// What lies where in the workspace, in bytes. Of a cropped problem, as all below.
struct WorkspaceLayout {
  std::size_t lse_log2, delta, dq_sums, end;
};
WorkspaceLayout workspace_layout(const core::BackwardProblem& problem, const Choice& choice);

/// Blocks of the grids.
std::int64_t grid_of(const core::BackwardProblem& problem, const BackwardVariant& variant, int sm_count);
/// Of the kernels before and after the products: blocks of 64 queries.
std::int64_t row_blocks(const core::BackwardProblem& problem);

/// Boxes of the tensor maps: rows of queries and of keys.
struct MapBoxes {
  hw::BoxRows queries, keys;
};
MapBoxes map_boxes(const BackwardVariant& variant);
/// The sums of dQ as a tensor of fp32 rows of 32 that parts are boxes of.
core::Tensor sums_tensor(const core::BackwardProblem& problem, const BackwardVariant& variant, void* sums);

/// All arguments but the tensor maps, which each machine encodes for itself.
BackwardArguments make_arguments(const core::BackwardProblem& problem, const BackwardVariant& variant,
                                 const Statistics& statistics, int sm_count);
PrepareArguments make_prepare_arguments(const core::BackwardProblem& problem, const Statistics& statistics,
                                        void* dq_sums);
FinishArguments make_finish_arguments(const core::BackwardProblem& problem, const float* dq_sums);
/// Of the first `rows` rows of a gradient, in the problem that was not cropped.
ClearArguments make_clear_arguments(const core::Tensor& tensor, std::int64_t rows);
/// Blocks of the kernel that clears.
int clear_blocks(const ClearArguments& args);

}  // namespace tandem::backward
