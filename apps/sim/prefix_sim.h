// Decoding steps whose sequences share prefixes, on the software Hopper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "api/hopper_prefix.h"
#include "apps/sim/machine.h"

namespace tandem::sim {

/// Runs all kernels of the call. `workspace`: aligned to 256, of api::shared_workspace_bytes, with anything
/// in it. `page_table`: all rows.
hw::sim::Report simulate_shared(const core::DecodeProblem& problem, const decode::SharedStep& shared,
                                std::span<std::byte> workspace, std::span<const std::int32_t> page_table,
                                const Machine& machine);

}  // namespace tandem::sim
