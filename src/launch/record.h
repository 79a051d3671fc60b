// The launch record: all that a machine has to know to run one kernel. Operations make it, in plain C++, from
// their problem; a machine encodes its tensor maps, finds its kernel, and enqueues it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/tensor_list.h"
#include "hw/tensor_map.h"
#include "hw/types.h"

namespace tandem::launch {

/// A tensor map that a kernel is told, and of what.
template <typename Arguments>
struct MapRequest {
  const char* name;  ///< the tensor's, for errors
  core::Tensor tensor;
  hw::BoxRows box;
  hw::TensorMap Arguments::*map;
};
/// The same of the maps of a tensor's panels.
template <typename Arguments>
struct PanelsRequest {
  const char* name;
  core::Tensor tensor;
  hw::BoxRows box;
  std::int32_t columns;  ///< that boxes bring
  hw::PanelMaps Arguments::*maps;
};

/// One launch of a kernel of a family (kernel.h).
template <typename Family>
struct Record {
  using Arguments = typename Family::Arguments;

  typename Family::Variant variant;
  int blocks;  ///< 0: there is nothing to run
  Arguments arguments;
  std::array<MapRequest<Arguments>, 8> maps{};       ///< those with a name
  std::array<PanelsRequest<Arguments>, 4> panels{};  ///< the same
  std::size_t map_count = 0, panels_count = 0;

  void request(const MapRequest<Arguments>& map) { maps.at(map_count++) = map; }
  void request(const PanelsRequest<Arguments>& of) { panels.at(panels_count++) = of; }
};

}  // namespace tandem::launch
