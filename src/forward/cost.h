// What a forward launch costs, by a model of a few measured numbers a kernel: dispatch takes the least, and
// `tandem info --explain` shows it.
//
// A tile costs its beginning and end, and so much for each block of keys that its rows meet, full, masked or
// ragged. Multiprocessors walk tiles in rounds: tiles of equal length leave the last round part empty,
// falling ones (causal) even out.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "forward/packing.h"
#include "forward/recipes.h"

namespace tandem::forward {

struct CostEstimate {
  std::int64_t tiles = 0;
  double key_blocks = 0;  ///< of a tile, in the mean
  double rounds = 0;      ///< of the grid; a part of one: that much of it is used
  double compute_us = 0, memory_us = 0;

  /// Of the kernel, with what any launch takes.
  double us() const { return launch_us + (compute_us > memory_us ? compute_us : memory_us); }
  static constexpr double launch_us = 3;
};

/// On `sm_count` multiprocessors. Takes a fraction of a microsecond: long sequences are sampled.
CostEstimate estimate(const core::ForwardProblem& problem, const ForwardVariant& variant, int sm_count);

/// By which dispatch chooses among variants: where bits may not depend on the batch, of a shape that no batch
/// changes.
CostEstimate estimate_to_choose(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Of the variant that dispatch takes (plan.h), and less where one of its two consumers has no rows. Dispatch
/// does not compare by that: it was measured on long keys alone.
CostEstimate estimate_chosen(const core::ForwardProblem& problem);

/// Of a variant's tile, in microseconds of a block: at all, and for each key that it sees. By rates: prices
/// are set to compare kernels with one another, and no times of tiles.
struct TileCost {
  double tile_us, key_us;
};
TileCost tile_cost(const ForwardVariant& variant);

/// Queries that a tile has.
std::int64_t queries_of_tile(const ForwardVariant& variant, const Packing& packing);
/// Blocks of keys that the tile of queries [first, past) visits.
std::int64_t blocks_of_tile(const core::ForwardProblem& problem, const ForwardVariant& variant,
                            std::int64_t first, std::int64_t past);

}  // namespace tandem::forward
