// The decode kernels on the software Hopper: the same source as on the chip, launched with host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/sim/machine.h"
#include "core/decode_problem.h"
#include "decode/variant.h"

namespace tandem::sim {

/// Every variant that is compiled for the simulator.
std::vector<decode::DecodeVariant> decode_variants(decode::Queries queries = decode::Queries::uniform);

/// "bf16 d64 register-p 8x64x4".
std::string name_of(const decode::DecodeVariant& variant);

/// Memory of a call that the problem does not tell the size of.
struct DecodeMemory {
  std::span<std::byte>
      workspace;  ///< aligned to 256; of decode::workspace_bytes, zeroed before its first use
  std::span<const std::int32_t> page_table;  ///< all rows
  std::span<std::int32_t> plan;              ///< of decode::any_plan_bytes, or empty
};

/// Runs the variant's kernel on the problem, whose tensors TMA has to be able to take.
hw::sim::Report simulate_decode(const core::DecodeProblem& problem, const decode::DecodeVariant& variant,
                                const DecodeMemory& memory, const Machine& machine);

/// Clears the counters of a workspace.
hw::sim::Report simulate_clear(std::span<std::byte> workspace, const Machine& machine);

/// Makes the plan of a call in memory.plan.
hw::sim::Report simulate_plan(const core::DecodeProblem& problem, const decode::DecodeVariant& variant,
                              const DecodeMemory& memory, const Machine& machine);

}  // namespace tandem::sim
