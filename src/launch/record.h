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

/// One launch of a kernel of a family (kernel.h).
template <typename Family>
struct Record {
  using Arguments = typename Family::Arguments;

  typename Family::Variant variant;
  int blocks;  ///< 0: there is nothing to run
  Arguments arguments;
  std::array<MapRequest<Arguments>, 8> maps{};  ///< those with a name
  std::size_t map_count = 0;
  bool starts_early = Family::starts_early;  ///< false: it may, but the launch waits for the kernel ahead

  void request(const MapRequest<Arguments>& map) { maps.at(map_count++) = map; }
  /// The maps of panels (hw::Panels) that bring so many columns, with one for a row's last box if it has any.
  void request(const MapRequest<Arguments>& whole, std::int32_t columns, hw::TensorMap Arguments::*last) {
    request(whole);
    if (columns % hw::Panels::width != 0)
      request({whole.name, whole.tensor, hw::last_box(whole.box, columns), last});
  }
};

}  // namespace tandem::launch
