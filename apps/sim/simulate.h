// How a launch record runs on the software Hopper.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/sim/machine.h"
#include "core/tensor_list.h"
#include "launch/kernel.h"
#include "launch/record.h"

namespace tandem::sim {

template <typename Family>
using Handle = void (*)(const typename Family::Arguments&);
template <typename Group>
using SimTable = launch::Table<typename Group::Family, Handle<typename Group::Family>>;

/// A group's kernels (kernels.h).
template <typename Group>
SimTable<Group> sim_kernels();

/// How a kernel and the one before it in the stream overlap.
enum class Overlap {
  by_family,    ///< as the family says
  next_beside,  ///< the kernel behind this one runs beside it
  beside        ///< this one runs beside the one before
};

/// Runs one kernel, which may touch these buffers.
template <typename Family>
hw::sim::Report simulate(launch::Record<Family>&& record, const std::vector<hw::sim::Buffer>& buffers,
                         const Machine& machine, Overlap overlap = Overlap::by_family) {
  if (record.blocks == 0) return {};
  const auto* kernel = launch::find_kernel<Family, Handle<Family>>(
      record.variant, []<typename Group>() { return sim_kernels<Group>(); });
  if (kernel == nullptr)
    throw std::invalid_argument(std::string("a variant that is not compiled for the simulator, of ") +
                                Family::name);
  for (std::size_t i = 0; i < record.map_count; ++i) {
    const auto& [name, tensor, box, map] = record.maps[i];
    record.arguments.*map = encode(tensor, box);
  }
  hw::sim::LaunchConfig config = machine.launch_config();
  config.blocks = record.blocks;
  config.threads = record.variant.threads();
  // As __launch_bounds__ gives them: the blocks of a multiprocessor share its registers.
  if (const int resident = launch::min_blocks<Family>(record.variant); resident > 1)
    config.registers_per_thread = std::min(255, 65536 / (resident * config.threads)) / 8 * 8;
  config.shared_bytes = kernel->shared_bytes;
  config.beside = overlap == Overlap::beside, config.next_beside = overlap == Overlap::next_beside;
  config.early = record.starts_early && !config.beside;
  config.buffers = buffers;
  return hw::sim::launch(config, [&record, kernel] { kernel->handle(record.arguments); });
}

}  // namespace tandem::sim
