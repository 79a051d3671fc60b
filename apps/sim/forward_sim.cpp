#include "apps/sim/forward_sim.h"

#include "apps/sim/simulate.h"
#include "forward/plan.h"

namespace tandem::sim {

std::vector<forward::ForwardVariant> forward_variants(forward::Lengths lengths) {
  std::vector<forward::ForwardVariant> variants = launch::variants_of<forward::Family>();
  std::erase_if(variants, [lengths](const forward::ForwardVariant& v) { return v.lengths != lengths; });
  return variants;
}

std::string name_of(const forward::ForwardVariant& v) {
  static constexpr const char* overlaps[] = {"serial", "two-stage", "three-stage"};
  static constexpr const char* operands[] = {"bf16", "fp16", "e4m3"};
  static constexpr const char* layouts[] = {"", " v-rows", " v-columns"};
  const std::string output = v.is_8_bit() ? std::string(" to ") + operands[static_cast<int>(v.output)] : "";
  return operands[static_cast<int>(v.operand)] + output + layouts[static_cast<int>(v.values)] + " d" +
         std::to_string(v.head_dim) + (v.mask == forward::MaskKind::prefix ? " prefix" : " band") +
         (v.lengths == forward::Lengths::varlen ? " varlen" : "") + (v.softcap ? " softcap " : " ") +
         overlaps[static_cast<int>(v.overlap)] +
         (v.turn == forward::TurnPolicy::pingpong ? " pingpong " : " ") + std::to_string(v.block_m) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.kv_stages);
}

hw::sim::Report simulate_forward(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                                 const Machine& machine) {
  std::vector<std::int32_t> list(
      static_cast<std::size_t>(forward::tile_list_words(forward::tile_count(problem, variant))));
  const auto buffers = [&](core::Role role_of_list) {
    return buffers_of(forward::memory_of(problem, variant, list.data(), role_of_list));
  };
  if (problem.varlen.given) {
    const hw::sim::Report report = simulate(forward::make_list_record(problem, variant, list.data()),
                                            buffers(core::Role::output), machine);
    if (!report.ok()) return report;
  }
  return simulate(forward::make_record(problem, variant, machine.multiprocessors, list.data()),
                  buffers(core::Role::input), machine);
}

}  // namespace tandem::sim
