#include "apps/sim/quantize_sim.h"

#include "apps/sim/simulate.h"
#include "quantize/plan.h"

namespace tandem::sim {

std::string name_of(const quantize::QuantizeVariant& variant) {
  return std::string(variant.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" +
         std::to_string(variant.head_dim) + (variant.by_column ? " by column" : " by key") +
         (variant.output == hw::Operand::int8 ? " to int8" : "") + (variant.terms == 2 ? " two terms" : "") +
         (variant.turns ? " turned" : "") + (variant.products ? " by products" : "") +
         (variant.row_scales ? " scales of rows" : "");
}

hw::sim::Report simulate_quantize(const core::QuantizeProblem& problem, const Machine& machine) {
  return simulate(quantize::make_record(problem, machine.multiprocessors), buffers_of(tensors_of(problem)),
                  machine);
}

}  // namespace tandem::sim
