// From a problem to a variant and its arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/decode_problem.h"
#include "decode/arguments.h"
#include "decode/variants.h"

namespace tandem::decode {

/// Multiprocessors that workspaces and plans have room for: no Hopper has more.
inline constexpr int max_sm_count = 132;

/// The variant that serves the problem, or nullptr if none is built for it.
const DecodeVariant* choose_variant(const core::DecodeProblem& problem);

/// How a grid is made up of teams (work.h).
struct TeamShape {
  int abreast;  ///< blocks of a team
  int teams;    ///< 0 where there is nothing to do

  constexpr int blocks() const { return abreast * teams; }
};
struct Deal {
  TeamShape usual, of_long_step;  ///< the same where there is nothing to gain

  constexpr bool differs() const { return of_long_step.abreast != usual.abreast; }
  constexpr int blocks() const { return std::max(usual.blocks(), of_long_step.blocks()); }
};
Deal deal(const core::DecodeProblem& problem, const DecodeVariant& variant, int sm_count);

/// Counters of a workspace, 0 between calls: a region of fixed size, so that calls of different shapes leave
/// one another's alone.
inline constexpr std::size_t counter_bytes = 4096;
static_assert(counter_bytes >= max_sm_count * sizeof(std::uint32_t));
/// Bytes that any grid needs: counters, then partial results.
std::size_t workspace_bytes(const core::DecodeProblem& problem, const DecodeVariant& variant);
inline constexpr std::size_t any_plan_bytes = plan_words(max_sm_count) * sizeof(std::int32_t);

/// All arguments but the tensor maps, which each machine encodes for itself: k_cache and v_cache in boxes of
/// box_rows keys.
DecodeArguments make_arguments(const core::DecodeProblem& problem, const DecodeVariant& variant,
                               const Deal& deal, void* workspace);

/// Keys of one TMA box.
int box_rows(const core::DecodeProblem& problem);

}  // namespace tandem::decode
