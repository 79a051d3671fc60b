#include "apps/sim/backward_sim.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "apps/sim/simulate.h"
#include "backward/varlen_plan.h"

namespace tandem::sim {

std::string name_of(const backward::BackwardVariant& v) {
  static constexpr const char* kernels[] = {"keys_serial", "keys_pipelined", "keys_in_roles", "queries"};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim) +
         (v.softcap ? " softcap " : " ") + kernels[static_cast<int>(v.kernel)] + " " +
         std::to_string(v.block_m) + "x" + std::to_string(v.block_n) + "x" + std::to_string(v.q_stages) +
         "x" + std::to_string(v.stages) + (v.is_varlen() ? " varlen" : "");
}

namespace {

/// The kernel of queries runs beside that of keys.
Overlap overlap_of(const backward::BackwardVariant& variant) {
  if (variant.kernel == backward::Kernel::queries) return Overlap::beside;
  return variant.adds_dq() ? Overlap::by_family : Overlap::next_beside;
}
template <typename Variant>
Overlap overlap_of(const Variant&) {
  return Overlap::by_family;
}

}  // namespace

hw::sim::Report simulate_backward(const core::BackwardProblem& problem, const backward::Choice& chosen,
                                  const Machine& machine) {
  backward::Choice choice = chosen;
  choice.grid = machine.multiprocessors;  // so that the ring is small, and its places serve several heads
  constexpr std::size_t alignment = 256;
  constexpr std::uint32_t not_a_number = 0x7fc0dead;
  const std::size_t bytes = backward::workspace_bytes(problem, choice);
  std::vector<std::uint32_t> words((bytes + alignment) / sizeof not_a_number, not_a_number);
  const auto address = reinterpret_cast<std::uintptr_t>(words.data());
  char* workspace = reinterpret_cast<char*>(words.data()) + (alignment - address % alignment) % alignment;
  const auto run = [&machine](auto&& step) {
    const Overlap overlap = overlap_of(step.record.variant);
    return simulate(std::move(step.record), buffers_of(step.memory), machine, overlap);
  };
  const int grid = machine.multiprocessors;
  if (problem.varlen.given)
    return backward::VarlenCall(problem, choice, grid, workspace).for_each_step<hw::sim::Report>(run);
  return backward::Call(problem, choice, grid, workspace).for_each_step<hw::sim::Report>(run);
}

}  // namespace tandem::sim
