// How a step of few queries and the forward share the chip, side by side.
//
// The step waits for memory, the forward for the tensor cores. A part of the multiprocessors is enough to
// read at memory's rate: the others meanwhile work on tiles. The step's grid comes first: blocks of it that
// have no share end at once, and the forward's blocks, which begin early, take their places. How much there
// is of either is known on the device only, so the kernel ahead of both says how many blocks each has.
//
// Source of the idea: Kamath et al., "POD-Attention", ASPLOS 2025, which runs both in one kernel.
#pragma once

#include <bit>

#include "forward/few_list.h"
#include "forward/tile_order.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// Tiles take longer beside the step, by so much of memory's rate as it has: at all of it, by this much.
inline constexpr float slower_beside = 0.35f;
/// Where it waits for the step: from the step's end until the forward is at work, and how much longer both
/// take than by their prices, beside what the shares take, as steps on a card say.
inline constexpr float turn_us = 4, slower_in_turn = 1.08f;

/// What there is to do, in microseconds of one multiprocessor.
struct ChipWork {
  float tiles, tiles_us;  ///< of the forward
  float longest_us;       ///< its longest tile
  float step_us;          ///< where all multiprocessors read

  /// Of the forward on so many blocks. Tiles of many lengths fill the last round.
  TANDEM_DEVICE float forward_us(float blocks) const {
    const float rounds = tiles / blocks, whole = static_cast<float>(static_cast<int>(rounds + 0.999f));
    const float ramp = 2 - 2 * tiles_us / (tiles * longest_us), spread = ramp < 1 ? ramp : 1;
    const float us = (rounds + (whole - rounds) * (1 - spread)) * tiles_us / tiles;
    return us > longest_us ? us : longest_us;
  }
  /// Until both have ended, where the step has `blocks` of the chip.
  TANDEM_DEVICE float us_with(const ChipShare& share, int blocks) const {
    const auto chip = static_cast<float>(share.multiprocessors);
    const float reading = static_cast<float>(blocks) * share.speed_of_few,
                own = reading < chip ? reading : chip;
    const float step = step_us / own;
    const int room = (share.multiprocessors - blocks) * share.resident;
    const float forward =
        (1 + slower_beside * own / chip) *
        forward_us(static_cast<float>(room < share.forward_blocks ? room : share.forward_blocks));
    return step > forward ? step : forward;
  }
  /// The same one after the other.
  TANDEM_DEVICE float us_in_turn(const ChipShare& share) const {
    return turn_us + slower_in_turn * (step_us / static_cast<float>(share.multiprocessors) +
                                       forward_us(static_cast<float>(share.forward_blocks)));
  }
};

/// Warp: all of a call's.
TANDEM_DEVICE ChipWork work_of_chip(const ListArguments& args) {
  const ChipShare& share = args.few.share;
  const VarlenArguments& varlen = args.forward.varlen;
  float tiles = 0, keys = 0, listed = 0, listed_keys = 0;
  int most_keys = 0;
  for (int i = static_cast<int>(hw::lane_index()); i < varlen.sequences; i += hw::warp_size) {
    const Sequence s = read_sequence(varlen, args.cache, i);
    const SequenceTiles own = SequenceTiles::of(args.forward, s, args.tile_queries);
    if (own.count == 0) continue;
    const int longest = own.length(0);
    if (is_few(args.few, s.q_len)) {
      listed += 1, listed_keys += static_cast<float>(longest);
    } else {
      tiles += static_cast<float>(own.count);
      keys += static_cast<float>(own.count) * (static_cast<float>(longest + own.length(own.count - 1)) / 2);
      most_keys = longest > most_keys ? longest : most_keys;
    }
  }
  const auto packs = static_cast<float>(varlen.packs);
  tiles = packs * tile::warp_sum(tiles), keys = packs * tile::warp_sum(keys);
  const auto longest = static_cast<float>(tile::warp_max(most_keys));
  return {tiles, tiles * share.tile_us + keys * share.key_us, share.tile_us + longest * share.key_us,
          tile::warp_sum(listed) * share.listed_us + tile::warp_sum(listed_keys) * share.listed_key_us};
}

/// Warp: says how many blocks the step and the forward have. One lane tries every 32nd share of the step; of
/// equal ones the largest, since those that read at memory's rate by the model nearly do. None, and both have
/// the whole chip, one after the other.
TANDEM_DEVICE void share_chip(const ListArguments& args) {
  const ChipShare& share = args.few.share;
  const ChipWork work = work_of_chip(args);
  const int lane = static_cast<int>(hw::lane_index());
  int teams = 0;
  if (work.tiles > 0 && work.step_us > 0) {
    float least = work.us_in_turn(share);
    const int most = args.few.step_blocks / share.team_blocks;
    for (int own = lane + 1; own <= most && own * share.team_blocks < share.multiprocessors;
         own += hw::warp_size) {
      const float us = work.us_with(share, own * share.team_blocks);
      if (us <= least) least = us, teams = own;
    }
    const std::uint32_t best = tile::warp_min(std::bit_cast<std::uint32_t>(least));  // of numbers from 0 on
    const bool has_best = std::bit_cast<std::uint32_t>(least) == best;
    teams = tile::warp_max(has_best ? teams : 0);
  }
  if (lane != 0) return;
  const int blocks = teams * share.team_blocks, room = (share.multiprocessors - blocks) * share.resident;
  hw::store_global(reinterpret_cast<std::uint32_t*>(args.few.list) + 1,
                   static_cast<std::uint32_t>(teams == 0 ? args.few.step_blocks : blocks));
  hw::store_global(reinterpret_cast<std::uint32_t*>(args.forward.varlen.tile_list) + 1,
                   static_cast<std::uint32_t>(room < share.forward_blocks ? room : share.forward_blocks));
}

}  // namespace tandem::forward
