// The kernel that merges the parts of wide tiles' streams, behind the step. It finds them as the step's
// blocks found their shares: a stream is cut where a share begins within it.
//
// Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding", 2023: a separate kernel reduces over the splits.
#pragma once

#include "decode/partials.h"

namespace tandem::decode {

/// For each place of the step's grid but those of the first team, so many blocks as there are slices: they
/// merge the stream in which the place's share begins, if that is the second share which visits it.
template <CombineVariant V>
TANDEM_DEVICE void combine_kernel(const CombineArguments& arguments) {
  const DecodeArguments& args = arguments.step;
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int team_blocks = args.teams.team_blocks.value(), own = static_cast<int>(hw::block_index());
  const int slices = 1 << arguments.log2_slices, place = team_blocks + (own >> arguments.log2_slices);
  SplitScheduler<false, V.queries> scheduler(args, place);
  const WorkTile work = scheduler.next();
  if (!work.exists() || work.first_unit == work.stream_begin) return;
  const StreamParts parts = parts_of(args, scheduler, work, place);
  if (parts.first_block + team_blocks == place)
    merge<V>(args, work, parts, to_output, {own & (slices - 1), slices});
}

}  // namespace tandem::decode
