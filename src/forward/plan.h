// From a problem to a variant and its arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/status.h"
#include "forward/arguments.h"
#include "forward/table.h"
#include "hw/tensor_map.h"

namespace tandem::forward {

/// The variant that serves the problem with the overlap and the turns that are asked for, or nullptr if none
/// is built for it. Of several it is the one for the mask's kind; of those, the one preferred at this length.
const ForwardVariant* choose_variant(const core::ForwardProblem& problem);

/// Where there is no variant: what was asked for, and what is built.
core::Status no_variant(const core::ForwardProblem& problem);

/// How the queries of one batch entry are cut into tiles of block_m rows.
struct Tiling {
  Packing packing;
  std::int64_t packs;     ///< of query heads
  std::int64_t m_blocks;  ///< tiles of one pack

  std::int64_t tiles() const { return packs * m_blocks; }
};

/// Heads of a group are packed where that saves enough tiles: where queries are few.
Tiling tiling_of(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Tiles of queries over all heads and batch entries.
std::int64_t tile_count(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Blocks of a persistent grid on `sm_count` multiprocessors.
int grid_size(const core::ForwardProblem& problem, const ForwardVariant& variant, int sm_count);

/// Boxes of the tensor maps.
struct MapBoxes {
  hw::BoxRows q, keys, o;  ///< keys: of k and v; o: used where the kernel stages its output
};
MapBoxes map_boxes(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Of variable lengths: the most tiles of one head that there may be, and the blocks of the kernel that lists
/// them (tile_list.h). 0 where lengths are uniform.
std::int64_t most_listed_tiles(const core::ForwardProblem& problem, const ForwardVariant& variant);
int listing_blocks(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// All arguments but the tensor maps, which each machine encodes for itself (tensor_map.h) for map_boxes, and
/// the list of tiles. tile_count has to be below 2^30.
ForwardArguments make_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant, int grid);

}  // namespace tandem::forward
