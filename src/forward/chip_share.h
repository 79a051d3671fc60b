// How a step of few queries and the forward share the chip, side by side.
//
// The step waits for memory, the forward for the tensor cores. A part of the multiprocessors is enough to
// read at memory's rate: the others meanwhile work on tiles. The step's grid comes first: blocks of it that
// have no share end at once, and the forward's blocks, which begin early, take their places. The rest of the
// forward's blocks begin where the step has ended, and take part then (tile_queue.h). How much there is of
// either is known on the device only, so the kernel ahead of both says how many blocks the step has.
//
// Source of the idea: Kamath et al., "POD-Attention", ASPLOS 2025, which runs both in one kernel.
#pragma once

#include <bit>

#include "forward/few_list.h"
#include "forward/tile_order.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// Of a step beside the forward, fitted to 26 steps with all their shares (docs/performance/forward.md,
/// Prompts beside a step): of memory's rate what a part of the chip reads at least once it is not itself the
/// limit, and the time until its first keys are there and from its last ones on.
inline constexpr float saturated = 0.6f, step_begin_us = 8;
/// Where one waits for the other: from the step's end until the forward is at work.
inline constexpr float turn_us = 4;

TANDEM_DEVICE float lesser(float a, float b) { return a < b ? a : b; }
/// Of positive numbers: the whole one at or below, and the one above.
TANDEM_DEVICE float whole(float x) { return static_cast<float>(static_cast<int>(x)); }
TANDEM_DEVICE float whole_above(float x) { return whole(x + 0.999f); }

/// What there is to do, in microseconds of one multiprocessor.
struct ChipWork {
  float tiles, tiles_us;  ///< of the forward
  float longest_us;       ///< its longest tile
  float step_us;          ///< where all multiprocessors read

  /// 0: all tiles are equally long; 1: they fall so that they fill any last round.
  TANDEM_DEVICE float spread() const { return lesser(1, 2 - 2 * tiles_us / (tiles * longest_us)); }
  /// Of the forward on so many blocks.
  TANDEM_DEVICE float forward_us(float blocks) const {
    const float rounds = tiles / blocks;
    const float us = (rounds + (whole_above(rounds) - rounds) * (1 - spread())) * tiles_us / tiles;
    return hw::max(us, longest_us);
  }
  /// The same, where others take part `later`.
  TANDEM_DEVICE float forward_us(float blocks, float others, float later) const {
    const float tile_us = tiles_us / tiles, all = blocks + others, before = later / tile_us;
    const float filled = later + (tiles_us - blocks * later) / all;
    // Of equal tiles the last one is of those who began at once, or of the others.
    const float first = whole_above((tiles + others * whole_above(before)) / all) * tile_us,
                second = later + whole_above((tiles - blocks * whole(before)) / all) * tile_us;
    return filled + (1 - spread()) * hw::max(0, lesser(first, second) - filled);
  }
  /// Until both have ended, where the step has `blocks` of the chip.
  TANDEM_DEVICE float us_with(const ChipShare& share, int blocks) const {
    const auto chip = static_cast<float>(share.multiprocessors);
    const float part = static_cast<float>(blocks) / chip;
    const float rate = lesser(part * share.speed_of_few, saturated + (1 - saturated) * part);
    const float step = step_begin_us + step_us / (chip * rate);
    const auto begin = static_cast<float>(share.forward_blocks_beside(blocks));
    const float alone = forward_us(begin);
    const float joined = forward_us(begin, static_cast<float>(share.forward_blocks) - begin, step);
    return hw::max(step, lesser(alone, joined));
  }
  /// The same one after the other.
  TANDEM_DEVICE float us_in_turn(const ChipShare& share) const {
    return step_begin_us + turn_us + step_us / static_cast<float>(share.multiprocessors) +
           forward_us(static_cast<float>(share.forward_blocks));
  }
};

/// Warp: all of a call's.
TANDEM_DEVICE ChipWork work_of_chip(const ListArguments& args) {
  const ChipShare& share = args.few.share;
  const VarlenArguments& varlen = args.forward.varlen;
  const TileSize size = TileSize::of(args);
  float tiles = 0, keys = 0, listed = 0, listed_keys = 0;
  int most_keys = 0;
  for (int i = static_cast<int>(hw::lane_index()); i < varlen.sequences; i += hw::warp_size) {
    const Sequence s = read_sequence(varlen, args.cache, i);
    const SequenceTiles own = SequenceTiles::of(size, s);
    if (own.count == 0) continue;
    const int longest = own.length(size, 0);
    if (is_few(args.few, s.q_len)) {
      listed += 1, listed_keys += static_cast<float>(longest);
    } else {
      tiles += static_cast<float>(own.count);
      keys +=
          static_cast<float>(own.count) * (static_cast<float>(longest + own.length(size, own.count - 1)) / 2);
      most_keys = longest > most_keys ? longest : most_keys;
    }
  }
  const auto packs = static_cast<float>(varlen.packs);
  tiles = packs * tile::warp_sum(tiles), keys = packs * tile::warp_sum(keys);
  const auto longest = static_cast<float>(tile::warp_max(most_keys));
  return {tiles, tiles * share.tile_us + keys * share.key_us, share.tile_us + longest * share.key_us,
          tile::warp_sum(listed) * share.listed_us + tile::warp_sum(listed_keys) * share.listed_key_us};
}

/// Warp: says how many blocks the step has, and how many of the forward's take their first tile by their
/// number, since they begin at once: none behind a step that has the whole chip, whose blocks end at
/// different times. One lane tries every 32nd share of the step; of equal ones the smallest, which leaves the
/// most to tiles.
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
      if (us < least) least = us, teams = own;
    }
    const std::uint32_t best = tile::warp_min(std::bit_cast<std::uint32_t>(least));  // of numbers from 0 on
    const bool has_best = std::bit_cast<std::uint32_t>(least) == best;
    teams = tile::warp_min(has_best ? teams : most);
  }
  if (lane != 0) return;
  const int blocks = teams * share.team_blocks;
  const bool in_turn = teams == 0 && work.step_us > 0;
  hw::store_global(reinterpret_cast<std::uint32_t*>(args.few.list) + 1,
                   static_cast<std::uint32_t>(teams == 0 ? args.few.step_blocks : blocks));
  hw::store_global(reinterpret_cast<std::uint32_t*>(args.forward.varlen.tile_list) + 1,
                   static_cast<std::uint32_t>(in_turn ? 0 : share.forward_blocks_beside(blocks)));
}

}  // namespace tandem::forward
