#include "apps/sim/decode_sim.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "apps/sim/simulate.h"
#include "decode/plan.h"

namespace tandem::sim {
namespace {

using core::DecodeProblem;
using decode::DecodeVariant;

template <typename T>
hw::sim::Buffer buffer_of(std::span<T> array, const char* name, bool writable) {
  return {array.data(), array.size_bytes(), name, writable};
}

/// What the step's list can't tell: all rows of the page table, and the parts of the workspace.
std::vector<hw::sim::Buffer> buffers_of_step(const DecodeProblem& problem, const DecodeMemory& memory) {
  std::vector<hw::sim::Buffer> buffers = buffers_of(decode::memory_of_step(problem, memory.workspace.data()));
  for (hw::sim::Buffer& buffer : buffers) {
    const std::string_view name = buffer.name;
    if (name == "cache.page_table") buffer = buffer_of(memory.page_table, buffer.name, false);
    if (name == "workspace")
      buffer = buffer_of(memory.workspace.first(decode::counter_bytes), "workspace.counters", true);
  }
  buffers.push_back(buffer_of(memory.workspace.subspan(decode::counter_bytes), "workspace.partials", true));
  return buffers;
}

/// What earlier calls left of partial results is nobody's. It shows as NaN where it is used; lanes whose row
/// does not exist may read it.
void poison_partials(const DecodeMemory& memory) {
  std::ranges::fill(memory.workspace.subspan(decode::counter_bytes), std::byte{0xff});
}

void choose_long_step(const Machine& machine, decode::DecodeArguments& args) {
  const bool exists = args.long_step < std::numeric_limits<int>::max();
  if (machine.long_steps && exists) args.long_step = 0;
}

}  // namespace

std::vector<DecodeVariant> decode_variants(decode::Queries queries) {
  std::vector<DecodeVariant> variants = launch::variants_of<decode::Family>();
  std::erase_if(variants, [queries](const DecodeVariant& v) { return v.queries != queries; });
  return variants;
}

std::string name_of(const DecodeVariant& v) {
  static constexpr const char* algorithms[] = {" plain ", " shared-p ", " register-p ", " eight-bit ",
                                               " paired "};
  std::string name =
      std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim);
  if (v.values_in_keys()) name.append("/").append(std::to_string(v.value_dim));
  return name + algorithms[static_cast<int>(v.algorithm)] + std::to_string(v.query_rows) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.stages) +
         (v.resident == 2   ? " by two"
          : v.resident == 3 ? " by three"
                            : "") +
         (v.shares_prefixes() ? " sharing"
          : v.lists_queries() ? " listed"
                              : "") +
         (v.token_scales ? " token-scales" : "") + (v.two_part_keys ? " two-part" : "") +
         (v.element == decode::Element::int8 ? " int8"
          : v.hadamard                       ? " hadamard"
                                             : "");
}

hw::sim::Report simulate_decode(const DecodeProblem& problem, const DecodeVariant& variant,
                                const DecodeMemory& memory, const Machine& machine) {
  auto record = decode::make_record(problem, variant, machine.multiprocessors, memory.workspace.data());
  if (record.blocks == 0) return {};
  poison_partials(memory);
  choose_long_step(machine, record.arguments);
  auto combine = decode::make_combine_record(record);
  const hw::sim::Report report = simulate(std::move(record), buffers_of_step(problem, memory), machine);
  if (!report.ok() || combine.blocks == 0) return report;
  return simulate(std::move(combine), buffers_of_step(problem, memory), machine);
}

hw::sim::Report simulate_clear(std::span<std::byte> workspace, const Machine& machine) {
  return simulate(decode::make_clear_record(workspace.data()),
                  buffers_of(decode::memory_of_clearing(workspace.data())), machine);
}

hw::sim::Report simulate_plan(const DecodeProblem& problem, const DecodeVariant& variant,
                              const DecodeMemory& memory, const Machine& machine) {
  auto record = decode::make_plan_record(problem, variant, machine.multiprocessors, memory.plan.data());
  choose_long_step(machine, record.arguments.step);
  return simulate(std::move(record), buffers_of(decode::memory_of_planning(problem, memory.plan.data())),
                  machine);
}

}  // namespace tandem::sim
