// In which order tiles of a call with one length come (core/tile_scheduler.h).
#pragma once

#include "core/problem.h"
#include "core/tile_scheduler.h"
#include "forward/plan.h"

namespace tandem::forward {

/// Of the variant's tiles on a grid of `grid` blocks.
///
/// Tiles of one head read the same keys and values, so they should run at the same time: head by head. Where
/// their lengths differ that has to leave blocks even, too, and all tiles of a head near one another in time.
/// Else they come by length, longest first, in sections of heads (docs/performance/forward.md, Head by head).
core::TileScheduler make_schedule(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                  const Tiling& tiling, int grid);

}  // namespace tandem::forward
