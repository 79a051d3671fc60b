#include "apps/sim/quantize_sim.h"

#include <utility>

#include "quantize/kernel.h"
#include "quantize/plan.h"

namespace tandem::sim {
namespace {

constexpr auto variants = quantize::all_variants();

template <std::size_t i>
void run_if(const quantize::QuantizeVariant& variant, const quantize::QuantizeArguments& args) {
  if (variant == variants[i]) quantize::quantize_kernel<variants[i]>(args);
}

template <std::size_t... i>
void run(const quantize::QuantizeVariant& variant, const quantize::QuantizeArguments& args,
         std::index_sequence<i...>) {
  (run_if<i>(variant, args), ...);
}

}  // namespace

std::string name_of(const quantize::QuantizeVariant& variant) {
  return std::string(variant.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" +
         std::to_string(variant.head_dim) + (variant.by_column ? " by column" : " by key");
}

hw::sim::Report simulate_quantize(const core::QuantizeProblem& problem, const Machine& machine) {
  const quantize::QuantizeArguments args = quantize::make_arguments(problem);
  const quantize::QuantizeVariant variant = quantize::variant_of(problem);
  hw::sim::LaunchConfig config = machine.launch_config();
  config.blocks = quantize::blocks_of(problem);
  if (config.blocks == 0) return {};
  config.threads = variant.threads();
  config.shared_bytes = 64 * 1024;
  config.buffers = {buffer_of(problem.x, "x", false), buffer_of(problem.out, "out", true),
                    buffer_of(problem.scale.values, "scale", !problem.scale_given)};
  return hw::sim::launch(config, [&] { run(variant, args, std::make_index_sequence<variants.size()>{}); });
}

}  // namespace tandem::sim
