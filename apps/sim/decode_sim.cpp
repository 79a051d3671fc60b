#include "apps/sim/decode_sim.h"

#include <algorithm>
#include <stdexcept>

#include "apps/sim/decode_kernels.h"
#include "core/dtype.h"
#include "decode/plan.h"

namespace tandem::sim {

namespace {

using core::DecodeProblem;
using decode::DecodeVariant;

const DecodeKernel& find_kernel(const DecodeVariant& variant) {
  for (std::span<const DecodeKernel> kernels :
       {decode_kernels_d64(), decode_kernels_d128(), decode_kernels_d256()}) {
    for (const DecodeKernel& kernel : kernels) {
      if (kernel.variant == variant) return kernel;
    }
  }
  throw std::invalid_argument("this variant is not compiled for the simulator: " + name_of(variant));
}

template <typename T>
hw::sim::Buffer array_of(std::span<T> words, const char* name, bool writable) {
  return {words.data(), words.size_bytes(), name, writable};
}

std::vector<hw::sim::Buffer> buffers_of(const DecodeProblem& problem, const DecodeMemory& memory) {
  const bool appends = problem.new_len() > 0;
  const auto batch = static_cast<std::size_t>(problem.batch());
  std::vector<hw::sim::Buffer> buffers = {
      buffer_of(problem.q, "q", false), buffer_of(problem.k_cache, "cache.k", appends),
      buffer_of(problem.v_cache, "cache.v", appends), unwritten(buffer_of(problem.o, "o", true)),
      array_of(std::span(problem.lengths, batch), "lengths", false)};
  const auto counters = memory.workspace.first(decode::counter_bytes),
             partials = memory.workspace.subspan(counters.size());
  buffers.push_back(array_of(counters, "workspace.counters", true));
  buffers.push_back(array_of(partials, "workspace.partials", true));
  if (appends) buffers.push_back(buffer_of(problem.k_new, "k_new", false));
  if (appends) buffers.push_back(buffer_of(problem.v_new, "v_new", false));
  if (problem.lse.data != nullptr) buffers.push_back(unwritten(buffer_of(problem.lse, "lse", true)));
  if (problem.batch_index != nullptr)
    buffers.push_back(array_of(std::span(problem.batch_index, batch), "batch_index", false));
  if (problem.paged()) buffers.push_back(array_of(memory.page_table, "page_table", false));
  if (problem.rotary.cos != nullptr) {
    const auto bytes = static_cast<std::size_t>(problem.rotary.positions * problem.rotary.dim / 2) *
                       core::size_of(problem.rotary.dtype);
    buffers.push_back({problem.rotary.cos, bytes, "cos", false});
    buffers.push_back({problem.rotary.sin, bytes, "sin", false});
  }
  return buffers;
}

/// What earlier calls left of partial results is nobody's. It shows as NaN where it is used; lanes whose row
/// does not exist may read it.
void poison_partials(const DecodeMemory& memory) {
  std::ranges::fill(memory.workspace.subspan(decode::counter_bytes), std::byte{0xff});
}

decode::DecodeArguments arguments_of(const DecodeProblem& problem, const DecodeVariant& variant,
                                     const decode::Deal& dealt, const DecodeMemory& memory,
                                     const Machine& machine) {
  decode::DecodeArguments args = decode::make_arguments(problem, variant, dealt, memory.workspace.data());
  if (machine.long_steps && dealt.differs()) args.long_step = 0;
  return args;
}

}  // namespace

std::vector<DecodeVariant> decode_variants() {
  std::vector<DecodeVariant> variants;
  for (std::span<const DecodeKernel> kernels :
       {decode_kernels_d64(), decode_kernels_d128(), decode_kernels_d256()}) {
    for (const DecodeKernel& kernel : kernels) variants.push_back(kernel.variant);
  }
  return variants;
}

std::string name_of(const DecodeVariant& v) {
  static constexpr const char* algorithms[] = {" plain ", " shared-p ", " register-p "};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + " d" + std::to_string(v.head_dim) +
         algorithms[static_cast<int>(v.algorithm)] + std::to_string(v.columns) + "x" +
         std::to_string(v.block_n) + "x" + std::to_string(v.stages);
}

hw::sim::Report simulate_decode(const DecodeProblem& problem, const DecodeVariant& variant,
                                const DecodeMemory& memory, const Machine& machine) {
  const DecodeKernel& kernel = find_kernel(variant);
  hw::sim::LaunchConfig config = machine.launch_config();
  const decode::Deal dealt = decode::deal(problem, variant, machine.multiprocessors);
  config.blocks = dealt.blocks();
  if (config.blocks == 0) return {};
  poison_partials(memory);
  config.threads = DecodeVariant::threads;
  config.early = true;
  config.shared_bytes = kernel.shared_bytes;
  config.buffers = buffers_of(problem, memory);
  if (problem.plan != nullptr) config.buffers.push_back(array_of(memory.plan, "plan", false));
  decode::DecodeArguments args = arguments_of(problem, variant, dealt, memory, machine);
  args.k =
      problem.capacity() == 0 ? encode(problem.q, {1}) : encode(problem.k_cache, {decode::box_rows(problem)});
  args.v = problem.capacity() == 0 ? args.k : encode(problem.v_cache, {decode::box_rows(problem)});
  return hw::sim::launch(config, [&args, &kernel] { kernel.body(args); });
}

hw::sim::Report simulate_plan(const DecodeProblem& problem, const DecodeVariant& variant,
                              const DecodeMemory& memory, const Machine& machine) {
  hw::sim::LaunchConfig config = machine.launch_config();
  const decode::Deal dealt = decode::deal(problem, variant, machine.multiprocessors);
  if (dealt.blocks() == 0) return {};
  config.threads = decode::plan_threads;
  config.buffers = buffers_of(problem, memory);
  config.buffers.push_back(unwritten(array_of(memory.plan, "plan", true)));
  decode::DecodeArguments args = arguments_of(problem, variant, dealt, memory, machine);
  args.plan = nullptr;
  return hw::sim::launch(config, [&] { make_decode_plan(args, memory.plan.data()); });
}

}  // namespace tandem::sim
