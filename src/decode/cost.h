// What a decoding step costs, by a model: which tile, and which shares, are worth taking. Plain C++.
#pragma once

#include "core/decode_problem.h"
#include "decode/plan.h"
#include "decode/variant.h"

namespace tandem::decode {

/// Microseconds of the step on the grid where all sequences fill the cache and a share has at least `share`
/// units. For tiles of shared_p without fixed splits: of the others nothing was measured.
double step_us(const core::DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
               std::int64_t share);

/// What a step takes beside other work, in microseconds of one multiprocessor: for a sequence, and for each
/// of its keys where all multiprocessors read; and how much faster one reads where so few do that memory is
/// not the limit.
struct CostBeside {
  double sequence_us, key_us, speed_of_few;
};
CostBeside cost_beside(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// The least share that costs least, from `usual` on: a whole number of streams, or a part of one, so that
/// few or none are cut.
std::int64_t best_share(const core::DecodeProblem& problem, const DecodeVariant& variant,
                        const GridShape& grid, std::int64_t usual);

}  // namespace tandem::decode
