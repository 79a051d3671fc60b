#include "apps/sim/forward_sim.h"

#include <span>

#include "apps/sim/simulate.h"
#include "forward/listed_tile.h"
#include "forward/plan.h"

namespace tandem::sim {

namespace {

std::vector<forward::ForwardVariant> variants_with(forward::Lengths lengths, bool block_sparse) {
  std::vector<forward::ForwardVariant> variants = launch::variants_of<forward::Family>();
  std::erase_if(variants, [lengths, block_sparse](const forward::ForwardVariant& v) {
    return v.lengths != lengths || v.block_sparse != block_sparse;
  });
  return variants;
}

}  // namespace

std::vector<forward::ForwardVariant> forward_variants(forward::Lengths lengths) {
  return variants_with(lengths, false);
}

std::vector<forward::ForwardVariant> sparse_variants(forward::Lengths lengths) {
  return variants_with(lengths, true);
}

std::string name_of(const forward::ForwardVariant& v) {
  static constexpr const char* overlaps[] = {"serial", "two-stage", "three-stage"};
  static constexpr const char* operands[] = {"bf16", "fp16", "e4m3", "int8"};
  static constexpr const char* layouts[] = {"", " v-rows", " v-columns"};
  const std::string output = v.is_8_bit() ? std::string(" to ") + operands[static_cast<int>(v.output)] : "";
  std::string values;
  if (v.has_narrow_values()) values.append("/").append(std::to_string(v.value_dim));
  return operands[static_cast<int>(v.operand)] + output + layouts[static_cast<int>(v.values)] +
         (v.fp16_scores ? " fp16-scores" : "") + (v.value_terms == 2 ? " two-terms d" : " d") +
         std::to_string(v.head_dim) + values + (v.mask == forward::MaskKind::prefix ? " prefix" : " band") +
         (v.lengths == forward::Lengths::varlen ? " varlen" : "") + (v.block_sparse ? " sparse" : "") +
         (v.softcap ? " softcap " : " ") + overlaps[static_cast<int>(v.overlap)] +
         (v.turn == forward::TurnPolicy::pingpong ? " pingpong " : " ") + std::to_string(v.block_m) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.kv_stages);
}

namespace {

/// What a launch may touch: the problem's tensors, and the list in its role.
std::vector<hw::sim::Buffer> buffers_with_list(const core::ForwardProblem& problem,
                                               std::span<std::int32_t> list, core::Role role_of_list) {
  core::TensorList tensors = tensors_of(problem);
  tensors.add_array("workspace", role_of_list, core::Region::of(list.data(), list.size_bytes()));
  return buffers_of(tensors);
}

}  // namespace

hw::sim::Report simulate_list(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                              const Machine& machine, std::vector<std::int32_t>& list) {
  list.resize(static_cast<std::size_t>(forward::tile_list_words(forward::tile_count(problem, variant))));
  return simulate(forward::make_list_record(problem, variant, machine.multiprocessors, list.data()),
                  buffers_with_list(problem, list, core::Role::output), machine);
}

hw::sim::Report simulate_forward(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                                 const Machine& machine) {
  // Each part of the workspace a buffer of its own.
  std::vector<std::int32_t> own_list;
  core::ForwardProblem rotated = forward::with_rotated_queries(problem, variant, nullptr);
  std::vector<std::uint64_t> queries(problem.varlen.rotates() ? forward::workspace_bytes(problem) / 8 + 2
                                                              : 0);
  if (problem.varlen.rotates()) {
    const auto address = reinterpret_cast<std::uintptr_t>(queries.data());
    rotated.q.data = reinterpret_cast<void*>((address + 15) / 16 * 16);
  }
  if (problem.varlen.given) {
    auto append = forward::make_append_record(problem, variant, nullptr);
    append.arguments.rotated_q = core::TensorView::of(rotated.q);
    std::vector<hw::sim::Buffer> memory = buffers_of(tensors_of(problem));
    if (problem.varlen.rotates()) {
      core::TensorList own;
      own.add("workspace.q", core::Role::output, rotated.q);
      for (const hw::sim::Buffer& buffer : buffers_of(own)) memory.push_back(buffer);
    }
    if (const hw::sim::Report report = simulate(std::move(append), memory, machine); !report.ok())
      return report;
    if (problem.plan == nullptr)
      if (const hw::sim::Report report = simulate_list(problem, variant, machine, own_list); !report.ok())
        return report;
  }
  std::span<std::int32_t> list = own_list;
  if (problem.plan != nullptr)
    list = {static_cast<std::int32_t*>(problem.plan), forward::plan_bytes(problem) / sizeof(std::int32_t)};
  return simulate(forward::make_record(rotated, variant, machine.multiprocessors, list.data()),
                  buffers_with_list(rotated, list, core::Role::updated), machine);
}

}  // namespace tandem::sim
