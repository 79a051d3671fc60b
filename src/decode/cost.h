// What a decoding step costs, by a model: which tile, and which shares, are worth taking. Plain C++.
#pragma once

#include "core/decode_problem.h"
#include "decode/plan.h"
#include "decode/variant.h"

namespace tandem::decode {

/// What a block has at least where all streams are equally long.
struct EvenShare {
  std::int64_t units;
  bool ends_with_streams = false;  ///< shares are parts of a stream; none begins in one and ends in another
  /// Each stream is the share of a block of its own. There are more of them than there is room for: some
  /// begin when others end, so that fast multiprocessors get more.
  bool of_own_blocks = false;
};

/// Whether the step is of those that were measured again: of tiles of 8 rows, by three blocks also of 16, one
/// for each stream, of which at least a third of the multiprocessors have one, and of so few keys that blocks
/// may know them.
bool is_short(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// Of such streams of any length, in tiles of 8 rows: whether as many parts as there are thread blocks for
/// are so short that blocks may know them.
bool has_short_parts(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// In how many parts each stream is cut where with such shares every block has a part that it knows without
/// the lengths (work.h): where there is a block for each, and a part so short that nobody waits long for the
/// longest. 0: blocks have shares of all streams.
std::int64_t known_parts(const core::DecodeProblem& problem, const DecodeVariant& variant,
                         const GridShape& grid, const EvenShare& share);

/// Microseconds of the step on the grid where all sequences fill the cache, with such shares. For tiles of
/// shared_p without fixed splits: of the others nothing was measured.
double step_us(const core::DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
               const EvenShare& share);

/// What a step takes beside other work, in microseconds of one multiprocessor: for a sequence, and for each
/// of its keys where all multiprocessors read; and how much faster one reads where so few do that memory is
/// not the limit.
struct CostBeside {
  double sequence_us, key_us, speed_of_few;
};
CostBeside cost_beside(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// The share that costs least, from `usual` units on: a whole number of streams, or a part of one, so that
/// few or none are cut.
EvenShare best_share(const core::DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid,
                     std::int64_t usual);

}  // namespace tandem::decode
