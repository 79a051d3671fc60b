// The forward kernels on the software Hopper: the same source as on the chip, launched with host memory.
#pragma once

#include <string>
#include <vector>

#include "apps/sim/machine.h"
#include "core/problem.h"
#include "forward/variant.h"

namespace tandem::sim {

/// Every variant that is compiled for the simulator: the same as for the chip.
std::vector<forward::ForwardVariant> forward_variants(forward::Lengths lengths = forward::Lengths::uniform);
/// Those for block lists, which are not among these.
std::vector<forward::ForwardVariant> sparse_variants(forward::Lengths lengths = forward::Lengths::uniform);

/// "bf16 d64 band softcap two-stage pingpong 192x128x2".
std::string name_of(const forward::ForwardVariant& variant);

/// Runs the kernel that lists the tiles of a problem of variable lengths, in the order for the
/// machine's multiprocessors. `list`: gets its words (forward/tile_list.h).
hw::sim::Report simulate_list(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                              const Machine& machine, std::vector<std::int32_t>& list);

/// Runs the variant's kernel on the problem, which it has to serve and whose tensors TMA has to be able to
/// take. Of variable lengths, a problem's plan is what simulate_list gave.
hw::sim::Report simulate_forward(const core::ForwardProblem& problem, const forward::ForwardVariant& variant,
                                 const Machine& machine);

}  // namespace tandem::sim
