#include "apps/sim/merge_sim.h"

#include "apps/sim/simulate.h"
#include "core/dtype.h"
#include "merge/plan.h"

namespace tandem::sim {

std::string name_of(const merge::MergeVariant& variant) {
  return std::string(core::name_of(variant.in)) + " to " + core::name_of(variant.out);
}

hw::sim::Report simulate_merge(const core::MergeProblem& problem, const Machine& machine) {
  return simulate(merge::make_record(problem), buffers_of(tensors_of(problem)), machine);
}

}  // namespace tandem::sim
